"""The whole reader: folders and archives, bounds, hostile input, conflicts, any bytes at all."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.evidence import Fact
from advisor.reading import read
from advisor.reading.merge import COMMAND, GUESS, PRINTED, SCRIPT, Ranked, merge
from reading.failure_texts import VERSIONS

CASES = sorted(p for p in (Path(__file__).parents[1] / "cases").glob("*") if (p / "input").is_dir())
FAILURE = VERSIONS["2.5"]


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_every_reported_failure_is_read_within_a_second(case: Path) -> None:
    started = time.perf_counter()
    reading = read([(p.name, p) for p in sorted((case / "input").iterdir())])
    assert time.perf_counter() - started < 5  # 0.3 s alone; the machine may be busy
    assert reading.evidence.sources
    assert reading.state == ("unreadable" if case.name == "control-yaml-bomb" else "read")


def test_nothing_is_empty() -> None:
    assert read([]).state == "empty"
    assert read([("paste", "  \n\n")]).state == "empty"


def test_a_folder_is_walked_without_links(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.log").write_text(FAILURE)
    (tmp_path / "outside.log").write_text(FAILURE.replace("2.25", "3.25"))
    (tmp_path / "logs" / "link.log").symlink_to(tmp_path / "outside.log")
    reading = read([("logs", tmp_path / "logs")])
    assert [s.name for s in reading.evidence.sources] == ["rank0.log"]
    assert len(reading.evidence.failures) == 1


def _zip(entries: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def _tar(entries: dict[str, bytes], link: str | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link is not None:
            info = tarfile.TarInfo("link.log")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("pack", [_zip, _tar, lambda entries: gzip.compress(next(iter(entries.values())))])
def test_archives_are_read_in_memory(pack: object) -> None:
    data = pack({"job/rank3.log": f"[rank3]: {FAILURE}\n".encode()})  # type: ignore[operator]
    failure = read([("logs.bin", data)]).evidence.failure
    assert failure is not None and failure.rank == 3


def test_names_that_leave_the_archive_and_links_are_left_out() -> None:
    reading = read([("a.zip", _zip({"../../etc/passwd.log": FAILURE.encode(), "/abs.log": FAILURE.encode(), "ok.log": b"hello\n"}))])
    assert [s.name for s in reading.evidence.sources if s.kind != "unreadable"] == ["ok.log"]
    reading = read([("a.tgz", _tar({"ok.log": b"hello\n"}, link="/etc/passwd"))])
    assert [s.name for s in reading.evidence.sources if s.kind != "unreadable"] == ["ok.log"]


@pytest.mark.parametrize("data", [_zip({"bomb.txt": bytes(64 * 2**20)}), gzip.compress(bytes(64 * 2**20)), _zip({f"{i}": b"x" for i in range(3000)})])
def test_archives_made_to_exhaust_memory_are_refused(data: bytes) -> None:
    reading = read([("bomb", data)])
    assert reading.state == "unreadable"
    assert "refused" in (reading.why or "") or "entries" in (reading.why or "")


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04broken", b"\x1f\x8bbroken", b"\x80\x04cos\nsystem\n(S'true'\ntR.", b"[" * 200_000, b"{" * 100_000, b"a: &a [*a]\n"]
)
def test_broken_and_hostile_files_are_refused_calmly(data: bytes) -> None:
    started = time.perf_counter()
    reading = read([("x.yaml" if data.startswith(b"a:") else "x.json", data)])
    assert time.perf_counter() - started < 5
    assert reading.evidence.failure is None


def test_the_log_wins_over_the_config_and_the_difference_is_shown() -> None:
    facts = [
        Ranked(Fact("batch.micro_batch", 4, "read", "config.yaml:1"), SCRIPT),
        Ranked(Fact("batch.micro_batch", 2, "read", "cmd.sh:1"), COMMAND),
        Ranked(Fact("batch.micro_batch", 8, "read", "log.txt:9"), PRINTED),
        Ranked(Fact("hardware.gpu", "a100-80gb", "assumed", "e:1"), GUESS),
        Ranked(Fact("hardware.gpu", "h100-80gb", "read", "smi:1"), SCRIPT),
    ]
    merged = merge(facts)
    assert merged.job.batch.micro_batch == 8
    assert {(c.kept.value, c.other.value) for c in merged.conflicts} == {(8, 4), (8, 2)}


def test_an_invalid_value_is_left_out_with_its_sentence() -> None:
    merged = merge(
        [Ranked(Fact("batch.micro_batch", -3, "read", "a:1", text="micro_batch_size: -3"), SCRIPT), Ranked(Fact("batch.seq_len", 512, "read", "a:2"), SCRIPT)]
    )
    assert merged.job.batch.micro_batch is None and merged.job.batch.seq_len == 512
    assert merged.not_understood[0].where == "a:1" and "batch.micro_batch" in merged.not_understood[0].why


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(["a.txt", "b.yaml", "c.json", "d.py", "e.sh", "f.toml"]), st.one_of(st.binary(max_size=600), st.text(max_size=600))),
        max_size=3,
    )
)
def test_any_bytes_are_read_without_a_crash(items: list[tuple[str, bytes | str]]) -> None:
    assert read(items).state in ("read", "empty", "unreadable")


_PIECES = [
    *VERSIONS.values(), "Traceback (most recent call last):", '  File "t.py", line 3, in f', "    x()", "NCCL WARN Cuda failure 'out of memory'",
    "exitcode: -9", "| 0 N/A N/A 1 C py 3MiB |", "MA 1 GB  Max_MA 2 GB  CA 3 GB  Max_CA 4 GB", "batch size 999999999999", "8 x A100", "Namespace(a=1, b=",
    "Model config X {",
    "\x1b[31m", "[rank3]: ", "\r", "0: ", "%s" * 30,
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(_PIECES), max_size=25), st.sampled_from(["\n", "", "\r\n", " "]), st.integers(0, 400))
def test_pieces_of_the_grammar_in_any_order(pieces: list[str], joint: str, cut: int) -> None:
    text = joint.join(pieces)
    reading = read([("log.txt", text[cut:] if len(text) > cut else text)])
    assert len(reading.evidence.lines) <= 3100


def test_an_archive_whose_names_lead_out_says_so() -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../../escape.txt")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    found = read([("logs.tar.gz", buffer.getvalue())])
    assert any("refused" in (source.note or "") for source in found.evidence.sources)
