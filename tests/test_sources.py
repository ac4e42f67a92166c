"""Source texts find their origin."""

import pytest

from advisor import sources


def test_ids_are_unique_and_every_entry_says_what_was_read() -> None:
    ids = [o.id.lower() for o in sources.origins()]
    assert len(ids) == len(set(ids))
    assert all(o.read and o.url.startswith("https://") for o in sources.origins())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("transformers 4.48 loss_utils.ForCausalLMLoss", "transformers"),
        ("arXiv 2205.05198 table 2", "arXiv 2205.05198"),
        ("torchtune, losses", "torchtune"),
        ("a guess", None),
        ("torchvision", None),
    ],
)
def test_the_nearest_name_wins(text: str, expected: str | None) -> None:
    found = sources.origin(text)
    assert (found.id if found else None) == expected
