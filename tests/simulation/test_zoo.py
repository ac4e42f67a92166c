"""A sample of the zoo: the estimate and the probe are within 2 % of each other, and at every moment of the step that both have."""

from collections.abc import Iterator

import pytest

from tests.simulation import zoo

pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def session() -> Iterator[zoo.Session]:
    with zoo.Session() as open_session:
        yield open_session


@pytest.mark.parametrize("name", zoo.SAMPLE)
def test_estimate_and_probe_agree(name: str, session: zoo.Session) -> None:
    found = zoo.look(session, name, dict(zoo.jobs())[name])
    assert found.off is not None, found.why
    assert abs(found.off) <= zoo.WITHIN, zoo.line(found)


def test_the_zoo_is_large_and_its_jobs_are_whole() -> None:
    jobs = dict(zoo.jobs())
    assert len(jobs) >= 60
    assert not [name for name, run in jobs.items() if run.missing]
