"""How the run could be laid out over its cards, and what one card holds at most: the planner's own answers."""

from __future__ import annotations

import streamlit as st

from advisor.planner.layouts import Layout, layouts
from advisor.planner.limits import Limits, limits
from advisor.run import Run
from advisor.units import gib, show, show_count, show_time
from advisor.views.kept import settings
from advisor.views.words import plain

_FITS = {True: "✓ fits", False: "✗ does not fit", None: "? card not known"}
SHOWN = 60
MOST_WHOLE = 12  # rows that are shown without scrolling


@st.cache_data(show_spinner="Estimating the layouts", max_entries=32)
def _layouts(key: str, _run: Run) -> list[Layout]:
    """The layouts of a job, kept by its settings."""
    del key  # a Run holds caches of its own and is not hashed
    return layouts(_run)


@st.cache_data(show_spinner=False, max_entries=64)
def _limits(key: str, _run: Run) -> Limits | None:
    del key
    return limits(_run)


def show_limits(run: Run) -> None:
    """The most that fits on this card, everything else as it is."""
    found = _limits(settings(run), run)
    if found is None:
        return
    said = [f"micro batch **{found.micro_batch:,}**" if found.micro_batch else "", f"sequence length **{found.seq_len:,}**" if found.seq_len else ""]
    if found.model is not None:
        said.append(f"model **{plain(found.model[0])}** ({show_count(found.model[1])} parameters)")
    if any(said):
        st.markdown("Up to the card's edge, each with everything else as it is: " + ", ".join(s for s in said if s) + ".")


def show_layouts(run: Run) -> None:
    """Every legal layout of the run's cards with memory and step time; fitting ones first, fastest first."""
    if run.world < 2:
        st.markdown("One card has nothing to lay out. Set the number of cards under More settings, or divide over several (Shard over).")
        return
    found = _layouts(settings(run), run)
    if not found:
        name = run.job.framework.name
        st.markdown(f"No layout to choose from: {plain(name) if name else 'this framework'} has no tensor, pipeline or context parallelism.")
        return
    best = next((x for x in found if x.fits), None)
    if best is not None:
        st.markdown(
            f"The fastest that fits: tensor **{best.tensor}** × context **{best.context}** × pipeline **{best.pipeline}** × data **{best.data}**, "
            f"{show(best.used_bytes)} on each card."
        )
    st.dataframe(
        [
            {
                "Tensor": x.tensor,
                "Context": x.context,
                "Pipeline": x.pipeline,
                "Data": x.data,
                "Expert": x.expert,
                "Checkpointing": x.checkpointing,
                "Needs": gib(x.used_bytes, 1),
                "Step": show_time(x.seconds) if run.usable is not None else "not known",
                "Verdict": _FITS[x.fits],
            }
            for x in found[:SHOWN]
        ],
        column_config={
            "Tensor": st.column_config.NumberColumn(help="Each matrix is cut into so many pieces; they exchange activations in every layer."),
            "Context": st.column_config.NumberColumn(help="Each sequence is cut into so many pieces."),
            "Pipeline": st.column_config.NumberColumn(help="The layers are cut into so many stages."),
            "Data": st.column_config.NumberColumn(help="So many groups work on different samples."),
            "Expert": st.column_config.NumberColumn(help="The experts of a layer are spread over so many cards; 1 for a model without experts."),
            "Checkpointing": st.column_config.TextColumn(help="What is recomputed in the backward pass instead of being kept."),
            "Step": st.column_config.TextColumn(help="Estimated time of one optimizer step."),
            "Needs": st.column_config.NumberColumn(format="%.1f GiB", help="Estimated, on the fullest card, without PyTorch's cache."),
        },
        hide_index=True,
        height="content" if len(found) <= MOST_WHOLE else 460,
        alt="Layouts of the run over its cards, those that fit first, with memory and step time.",
    )
    if len(found) > SHOWN:
        st.caption(f"{len(found) - SHOWN} more are slower or larger.")
