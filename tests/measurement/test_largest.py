"""The search for the largest micro batch: right for every boundary and guess, and short where the guess is good."""

from hypothesis import given
from hypothesis import strategies as st

from advisor.measurement.largest import largest


@given(boundary=st.integers(0, 300), guess=st.integers(-5, 400), most=st.integers(1, 256))
def test_the_boundary_is_found(boundary: int, guess: int, most: int) -> None:
    tried: list[int] = []

    def fits(number: int) -> bool:
        tried.append(number)
        return number <= boundary

    assert largest(fits, guess, most) == min(boundary, most)
    assert len(tried) == len(set(tried)) <= 2 * most.bit_length() + 2
    assert all(1 <= number <= most for number in tried)
    if guess == boundary < most and boundary > 0:
        assert tried == [guess, guess + 1]
