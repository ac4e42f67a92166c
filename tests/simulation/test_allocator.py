"""Traces worked out by hand from the allocator's rules, and laws that hold for any trace."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from advisor.simulation.allocator import Caching
from advisor.simulation.allocator_settings import Settings
from advisor.simulation.replaying import replay
from advisor.units import KIB, MIB

EXPANDABLE = Settings(expandable=True)


def test_small_requests_share_two_mebibytes() -> None:
    a = Caching()
    a.allocate(1, 1)
    a.allocate(2, 513)
    a.allocate(3, MIB)
    assert (a.allocated, a.reserved) == (512 + 1024 + MIB, 2 * MIB)
    a.allocate(4, MIB)  # 2 MiB - 1 MiB - 1.5 KiB are left: a second segment
    assert a.reserved == 4 * MIB


def test_middle_requests_share_twenty_mebibytes_and_large_ones_are_rounded_to_two() -> None:
    a = Caching()
    a.allocate(1, MIB + 1)
    assert (a.allocated, a.reserved) == (MIB + 512, 20 * MIB)
    a.allocate(2, 10 * MIB - 512)
    assert a.reserved == 20 * MIB
    a.allocate(3, 10 * MIB)
    assert a.reserved == 30 * MIB
    a.allocate(4, 11 * MIB)
    assert a.reserved == 42 * MIB
    assert a.blocks[4].size == 12 * MIB  # the last MiB is not split off: no more than 1 MiB would be left


def test_a_block_is_split_only_when_more_than_a_mebibyte_is_left() -> None:
    a = Caching()
    a.allocate(1, 30 * MIB)
    a.free(1)
    a.allocate(2, 29 * MIB)
    assert (a.allocated, a.reserved) == (30 * MIB, 30 * MIB)
    a.free(2)
    a.allocate(3, 29 * MIB - 512)
    assert (a.allocated, a.reserved) == (29 * MIB - 512, 30 * MIB)


def test_the_best_fit_is_the_smallest_that_is_large_enough() -> None:
    a = Caching()
    for number, size in ((1, 100), (2, 60), (3, 80)):
        a.allocate(number, size * MIB)
    for number in (1, 2, 3):
        a.free(number)
    a.allocate(4, 70 * MIB)
    assert a.blocks[4].segment == 0x7F00_0000_0000 + 160 * MIB
    assert a.reserved == 240 * MIB


def test_neighbours_merge_and_stranded_rest_serves_nobody_larger() -> None:
    a = Caching()
    a.allocate(1, 40 * MIB)
    a.free(1)
    for number in (2, 3, 4, 5):
        a.allocate(number, 10 * MIB)
    assert a.reserved == 40 * MIB
    a.free(2)
    a.free(4)
    a.allocate(6, 20 * MIB)  # 20 MiB are free, but not next to each other
    assert a.reserved == 60 * MIB
    a.free(3)
    a.allocate(7, 30 * MIB)
    assert a.reserved == 60 * MIB


def test_expandable_segments_grow_at_their_end() -> None:
    a = Caching(settings=EXPANDABLE)
    a.allocate(1, 30 * MIB)
    assert a.reserved == 40 * MIB  # two pages of 20
    a.allocate(2, 15 * MIB)  # 10 MiB are free at the end: one more page
    assert a.reserved == 60 * MIB
    a.allocate(3, KIB)
    assert a.reserved == 62 * MIB
    a.free(1)
    a.allocate(4, 29 * MIB + 512 * KIB)
    assert (a.allocated, a.reserved) == (44 * MIB + 512 * KIB + KIB, 62 * MIB)


def test_an_expandable_end_is_taken_last() -> None:
    a = Caching(settings=EXPANDABLE)
    a.allocate(1, 25 * MIB)
    a.allocate(2, 5 * MIB)  # 30 of 40 MiB: the end has 10
    a.free(1)
    a.allocate(3, 8 * MIB)  # the end (10 MiB) is the smaller fit, but it could become larger than the 25 MiB block
    assert a.blocks[3].address == 0x7F00_0000_0000


def test_a_full_card_returns_what_is_free_and_asks_again() -> None:
    a = Caching(capacity=100 * MIB)
    a.allocate(1, 60 * MIB)
    a.free(1)
    assert a.allocate(2, 80 * MIB)
    assert (a.retries, a.reserved, a.max_reserved) == (1, 80 * MIB, 80 * MIB)
    assert not a.allocate(3, 30 * MIB)
    assert (a.failed, a.retries) == (30 * MIB, 2)


def test_expandable_pages_move_where_a_segment_could_not() -> None:
    a = Caching(capacity=100 * MIB, settings=EXPANDABLE)
    for number in (1, 2, 3, 4, 5):
        a.allocate(number, 20 * MIB)
    a.free(1)
    a.free(3)
    assert a.allocate(6, 40 * MIB)  # its two free pages are not next to each other: unmapped and mapped at the end
    assert a.reserved == 100 * MIB
    plain = Caching(capacity=100 * MIB)
    plain.allocate(0, 100 * MIB)
    plain.free(0)
    for number in (1, 2, 3, 4, 5):
        plain.allocate(number, 20 * MIB)
    plain.free(1)
    plain.free(3)
    assert not plain.allocate(6, 40 * MIB)


def test_pages_mapped_between_free_blocks_join_both() -> None:
    a = Caching(capacity=100 * MIB, settings=EXPANDABLE)
    for number in (1, 2, 3, 4, 5):
        a.allocate(number, 20 * MIB)
    a.free(1)
    a.free(3)
    a.allocate(6, 40 * MIB)  # the pages of 1 and 3 have moved: holes at 0 and 40 MiB
    a.free(2)
    a.free(4)
    a.capacity = 160 * MIB  # another process has left the card
    assert a.allocate(7, 80 * MIB)  # hole, free, hole, free from the beginning on: two pages more
    assert (a.blocks[7].address, a.blocks[7].size, a.reserved) == (0x7F00_0000_0000, 80 * MIB, 140 * MIB)


def test_large_blocks_are_kept_whole_under_max_split_size() -> None:
    a = Caching(settings=Settings(max_split=50 * MIB))
    a.allocate(1, 60 * MIB)
    a.free(1)
    a.allocate(2, 20 * MIB)
    assert a.reserved == 80 * MIB
    a.allocate(3, 52 * MIB)  # within 20 MiB: taken whole
    assert (a.reserved, a.blocks[3].size) == (80 * MIB, 60 * MIB)


def test_rounding_to_divisions_of_a_power_of_two() -> None:
    s = Settings(divisions=4)
    assert s.rounded(1200 * KIB) == 1280 * KIB  # 1024, 1280, 1536, 1792, 2048
    assert s.rounded(1024 * KIB) == 1024 * KIB
    assert s.rounded(2000) == 2048  # at most 512 x 4: as ever
    assert Settings.of({"expandable_segments": True, "max_split_size_mb": 128}) == Settings(True, 128 * MIB, 0)


def test_streams_never_share() -> None:
    a = Caching()
    a.allocate(1, 10 * MIB, stream=0)
    a.free(1)
    a.allocate(2, 10 * MIB, stream=1)
    assert a.reserved == 20 * MIB


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 5)), max_size=60), st.booleans())
def test_nothing_is_lost_and_nothing_overlaps(requests: list[tuple[int, int]], expandable: bool) -> None:
    a = Caching(settings=Settings(expandable=expandable))
    alive: list[int] = []
    for number, (size, free) in enumerate(requests):
        if free and len(alive) >= free:
            a.free(alive.pop(-free))
        assert a.allocate(number, size)
        alive.append(number)
        spans = sorted((b.address, b.address + b.size) for b in a.blocks.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        free_bytes = sum(b.size for pool in a.pools.values() for b in pool.held)
        assert a.allocated + free_bytes == a.reserved
        assert all(b.size >= b.requested for b in a.blocks.values())


def test_replay_says_what_a_setting_would_change() -> None:
    sizes = {number: (20 + number) * MIB for number in range(41)}  # ever longer sequences: freed blocks never fit the next
    events = [(free, number) for number in sizes for free in (False, True)]
    assert replay(events, sizes).max_reserved > 10 * replay(events, sizes, settings=EXPANDABLE).max_reserved
    assert replay(events, sizes, settings=EXPANDABLE).max_reserved == 60 * MIB
