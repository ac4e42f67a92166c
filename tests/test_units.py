"""Sizes as text and back."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.units import GIB, MIB, read_size, show, show_count, show_time, signed


def test_reads_what_pytorch_prints() -> None:
    assert read_size("954.00 MiB").bytes == 954 * MIB
    assert read_size("14.20 GiB").tolerance == -(-GIB * 5 // 1000)
    assert read_size("512 bytes").bytes == 512
    assert read_size("1.5 GB").bytes == 1_500_000_000


def test_refuses_what_is_no_size() -> None:
    for text in ("", "GiB", "12 parsecs", "1e3 GiB", "9" * 40 + " GiB", "-1 GiB"):
        assert read_size(text) is None


def test_shows_one_unit_with_fixed_digits() -> None:
    assert show(14.2 * GIB) == "14.2 GiB"
    assert show(954 * MIB) == "954 MiB"
    assert show(-3 * GIB) == "-3.0 GiB"
    assert signed(3 * GIB) == "+3.0 GiB"
    assert show_count(8.03e9) == "8.03 B"
    assert show_time(0.5) == "500 ms"


@given(st.integers(min_value=0, max_value=2**60), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_printed_digits_contain_the_true_value(size: int, unit: str) -> None:
    scale = {"KiB": 1024, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}[unit]
    read = read_size(f"{size / scale:.2f} {unit}")
    assert read is not None
    assert abs(read.bytes - size) <= read.tolerance + 1 + size // 2**50
