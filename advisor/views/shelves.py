"""The library's tables: cards, models and frameworks, each with where it was read and whether it was read again."""

from __future__ import annotations

import streamlit as st

from advisor import cards
from advisor.architecture.presets import find, names
from advisor.frameworks.table import names as framework_names
from advisor.frameworks.table import table as framework
from advisor.units import gib, show_count
from advisor.views.words import BROKEN_LINES, plain, table


def card_table() -> None:
    """What a process can use of each card, its rates, and where each figure is from."""
    st.markdown("What a process can use is less than the name on the box: the driver keeps a share, and the box counts in decimal.")
    found = [
        {
            "Card": c.name,
            "Open": f"library?kind=cards&page={c.id}",
            "Usable": gib(c.usable()[0], 1),
            "On the box": c.marketed_gb,
            "Bandwidth": None if c.bandwidth_bytes is None else c.bandwidth_bytes / 1e9,
            "bf16": None if not (rate := c.flops.get("bf16")) else rate / 1e12,
            "Capability": c.capability,
            "Id": c.id,
            "Read again": not c.unverified,
        }
        for c in cards.catalogue().values()
    ]
    st.dataframe(
        found,
        column_config={
            "Usable": st.column_config.NumberColumn(format="%.1f GiB", help="What a process can use, its CUDA context included."),
            "Open": st.column_config.LinkColumn(display_text="figures", help="All figures of the card, each with where it was read."),
            "On the box": st.column_config.NumberColumn(format="%g GB"),
            "Bandwidth": st.column_config.NumberColumn(format="%.0f GB/s", help="Of the card's memory."),
            "bf16": st.column_config.NumberColumn(
                width=110, format="%.0f TFLOP/s", help="Dense matrix rate in bf16; empty where it has none or it is not known."
            ),
            "Capability": st.column_config.TextColumn(help="NVIDIA's compute capability: what the card's generation can compute."),
            "Id": st.column_config.TextColumn(help="How a job file names it."),
            "Read again": st.column_config.CheckboxColumn(help="Whether every figure was read again at its source; the card's page says which was not."),
        },
        placeholder="",
        hide_index=True,
        height=640,
        alt="The cards of the library with what a process can use of each, its rates, and whether every figure was read again.",
    )


def model_table() -> None:
    """Every model with its size, and where its config was read."""
    wanted = st.text_input("Look for a model", key="library-models", placeholder="llama")
    found = [(n, p) for n in names() if wanted.lower() in n.lower() and (p := find(n)) is not None]
    st.dataframe(
        [
            {
                "Model": n,
                "Open": f"library?kind=models&page={n}",
                "Parameters": show_count(p.parameters),
                "Weights in 16 bit": gib(p.parameters * 2, 1),
                "Source": p.source,
                "Read again": p.verified,
            }
            for n, p in found
        ],
        column_config={
            "Parameters": st.column_config.TextColumn(help="M: millions, B: billions."),
            "Weights in 16 bit": st.column_config.NumberColumn(format="%.1f GiB"),
            "Source": st.column_config.TextColumn(help="Where the config was read."),
            "Read again": st.column_config.CheckboxColumn(help="Whether the config was read again at its source."),
            "Open": st.column_config.LinkColumn(display_text="config"),
        },
        hide_index=True,
        height=640,
        alt="The models of the library with their size and source.",
    )


def one_model(name: str) -> None:
    """A model's config and where it was read."""
    preset = find(name)
    if preset is None:
        st.warning(f"The library has no model {plain(name)}.", icon=":material/search_off:")
        return
    st.header(plain(preset.hub_id))
    st.markdown(f"{show_count(preset.parameters)} parameters; {gib(preset.parameters * 2, 1):,} GiB of weights in 16 bit.")
    if preset.note:
        st.markdown(plain(preset.note))
    st.caption(f"Config {'read at its source' if preset.verified else 'not re-read at its source'}. {plain(preset.source)}")
    st.json(dict(preset.config), expanded=False)


def framework_table() -> None:
    """Which settings of which framework are read and written, and where they were read."""
    st.markdown("Each framework's settings are one table: it reads a config, and writes the lines of a change.")
    tables = [framework(name) for name in framework_names()]
    st.dataframe(
        [
            {
                "Framework": t.title,
                "Open": f"library?kind=frameworks&page={t.name}",
                "Settings": len(t.entries),
                "Defaults": len(t.defaults),
                "Sits on": ", ".join(t.layers),
                "Source": t.source,
            }
            for t in tables
        ],
        column_config={
            "Framework": st.column_config.TextColumn(width=190),
            "Settings": st.column_config.NumberColumn(help="Settings that are read and written."),
            "Defaults": st.column_config.NumberColumn(help="Values that hold where nothing is written, by version."),
            "Sits on": st.column_config.TextColumn(width=180, help="Frameworks whose settings it takes as well."),
            "Source": st.column_config.TextColumn(width=480, help="The version and files that were read."),
            "Open": st.column_config.LinkColumn(display_text="settings"),
        },
        row_height=BROKEN_LINES,
        hide_index=True,
        height=640,
        alt="The frameworks of the library with the number of settings, and where they were read.",
    )


def one_framework(name: str) -> None:
    """The settings of a framework: key, and the job's field."""
    if name not in framework_names():
        st.warning(f"The library has no framework {plain(name)}.", icon=":material/search_off:")
        return
    found = framework(name)
    st.header(plain(found.title))
    st.caption(f"Source: {plain(found.source)}")
    rows = []
    for entry in found.entries:
        set_by = {path for case in entry.all_cases for path in case.fields} | set(entry.fields) | ({entry.field} if entry.field else set())
        rows.append((plain(", ".join(entry.all_keys)), plain(", ".join(sorted(set_by))), plain(entry.source or "")))
    st.markdown(table(("Setting", "Field of a job file", "Source, where it differs"), rows))
