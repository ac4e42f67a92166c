"""What is kept of an output is bounded, in order, and holds the first failure however long the rest is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.launching import kept
from advisor.launching.kept import Kept


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=30))
def test_a_short_output_is_kept_whole(chunks: list[bytes]) -> None:
    seen = Kept()
    for chunk in chunks:
        seen.feed(chunk)
    assert seen.text() == b"".join(chunks)


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, 60), size=st.integers(1000, 90_000))
def test_the_first_failure_is_found_across_chunks(cut: int, size: int) -> None:
    line = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    noise = b"step 1 loss 2.0\n" * (size // 16)
    seen = Kept()
    for _ in range(60):
        seen.feed(noise)
    before = seen.total
    seen.feed(line[:cut])
    seen.feed(line[cut:])
    for _ in range(60):
        seen.feed(noise)
    seen.feed(b"RuntimeError: CUDA out of memory, again\n" * 3)
    for _ in range(40):
        seen.feed(noise)
    assert seen.failed_at == before + line.index(b"out of memory")
    assert line in seen.text()
    assert len(seen.text()) < kept.HEAD_BYTES + kept.BEFORE_BYTES + kept.AFTER_BYTES + kept.TAIL_BYTES + 3 * size + 500


def test_what_was_left_out_is_counted() -> None:
    seen = Kept()
    for number in range(400):
        seen.feed(b"%08d\n" % number * 2000)
    text = seen.text()
    at = text.index(b"bytes of output were not kept")
    left_out = int(text[: at - 1].rpartition(b"[")[2])
    notice = len(b"\n[%d bytes of output were not kept]\n" % left_out)
    assert len(text) - notice + left_out == seen.total
