"""Saved reports: kept, found, expired, deleted, limited; with many writers at once; in SQLite and, where a server is there, PostgreSQL."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from advisor import database, store
from advisor.database import StoreError
from advisor.diagnosis import diagnose_reading
from advisor.reading import read
from advisor.share import link

SERVER = os.environ.get("ADVISOR_TEST_POSTGRES", "")  # postgresql://..., an empty database of its own
BODY = {"version": 1, "link": "v=1", "verdict": "ooms"}


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        url = database.configured({database.VARIABLE: str(tmp_path / "reports.db")})
    else:
        if not SERVER:
            pytest.skip("no PostgreSQL server: set ADVISOR_TEST_POSTGRES=postgresql://...")
        pytest.importorskip("psycopg", reason="no driver: pip install 'training-memory-advisor[postgres]'")
        url = database.configured({database.VARIABLE: SERVER})
    assert url is not None
    found = database.connected(url)
    yield found
    if request.param == "postgresql":
        database.META.drop_all(found)
    found.dispose()
    database.connected.cache_clear()


def test_it_is_off_unless_set() -> None:
    assert database.configured({}) is None
    assert database.configured({database.VARIABLE: "postgres://u@h/d"}) == "postgresql+psycopg://u@h/d"


def test_kept_found_and_deleted_by_its_token_only(engine: sa.Engine) -> None:
    id, token = store.save(engine, BODY)
    assert store.ID.fullmatch(id)
    found = store.find(engine, id)
    assert found is not None and found.body == BODY
    assert not store.delete(engine, id, "wrong")
    assert store.find(engine, id) is not None
    assert store.delete(engine, id, f" {token} ")
    assert store.find(engine, id) is None
    assert not store.delete(engine, id, token)


def test_the_token_is_not_in_the_database(engine: sa.Engine) -> None:
    _, token = store.save(engine, BODY)
    with engine.begin() as connection:
        assert token not in str(connection.execute(sa.select(database.REPORTS)).all())


def test_it_expires_and_its_rows_go(engine: sa.Engine) -> None:
    id, _ = store.save(engine, BODY, days=7, now=1_000_000)
    store.record(engine, id, fixed=True, now=1_000_001)
    assert store.find(engine, id, now=1_000_000 + 7 * 86_400 - 1) is not None
    assert store.find(engine, id, now=1_000_000 + 7 * 86_400) is None
    store.save(engine, BODY, now=2_000_000)
    with engine.begin() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(database.REPORTS)).scalar() == 1
        assert connection.execute(sa.select(sa.func.count()).select_from(database.OUTCOMES)).scalar() == 0


def test_what_happened_afterwards_is_masked_and_counted(engine: sa.Engine) -> None:
    id, _ = store.save(engine, BODY)
    store.record(engine, id, fixed=False, note="CUDA out of memory in /home/ada/train.py")
    store.record(engine, id, fixed=True)
    found = store.find(engine, id)
    assert found is not None
    assert [o.fixed for o in found.outcomes] == [False, True]
    assert "ada" not in found.outcomes[0].note
    with pytest.raises(StoreError, match="no report"):
        store.record(engine, "AAAAAAAAAAAA", fixed=True)
    with pytest.raises(StoreError, match="characters"):
        store.record(engine, id, fixed=False, note="x" * (store.MAX_NOTE + 1))


def test_size_and_rate_are_limited(engine: sa.Engine) -> None:
    with pytest.raises(StoreError, match="bytes"):
        store.save(engine, {"version": 1, "texts": ["é" * store.MAX_BODY]})
    for _ in range(store.PER_HOUR):
        store.save(engine, BODY, sender="one", now=5_000_000)
    with pytest.raises(StoreError, match="last hour"):
        store.save(engine, BODY, sender="one", now=5_000_001)
    store.save(engine, BODY, sender="another", now=5_000_001)
    store.save(engine, BODY, sender="one", now=5_003_601)


def test_many_writers_at_once(engine: sa.Engine) -> None:
    def write(number: int) -> list[str]:
        return [store.save(engine, {**BODY, "n": number}, sender=str(number))[0] for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        ids = [id for found in pool.map(write, range(8)) for id in found]
    assert len(set(ids)) == 80
    assert all(store.find(engine, id) is not None for id in ids)


def test_an_older_database_is_brought_up_to_date_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = database._engine(url)
    with engine.begin() as connection:
        database.META.create_all(connection, tables=[database.SETTINGS])
        database.MIGRATIONS[0](connection)
        connection.execute(database.SETTINGS.insert().values(name="version", value="1"))
        connection.execute(database.REPORTS.insert().values(id="A" * 12, token_hash="", created=1, expires=1 << 40, body='{"version":1}'))
    with ThreadPoolExecutor(4) as pool:  # several instances start together
        list(pool.map(lambda _: _migrated(url), range(4)))
    found = store.find(database.connected(url), "A" * 12)
    assert found is not None and found.body == {"version": 1}
    with engine.begin() as connection:
        connection.execute(database.SETTINGS.update().where(database.SETTINGS.c.name == "version").values(value="99"))
    database.connected.cache_clear()
    with pytest.raises(StoreError, match="newer"):
        database.connected(url)


def _migrated(url: str) -> int:
    engine = database._engine(url)
    with engine.begin() as connection:
        return database.migrate(connection)


def test_what_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="SQLite"):
        database.connected("mysql://h/d")
    with pytest.raises(StoreError, match="cannot be used"):
        database.connected(f"sqlite:///{tmp_path}/no/such/folder/x.db")


def test_a_report_is_masked_before_it_is_shown_or_saved() -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz /home/ada/run.py"
    reading = read([("pasted text", text)])
    body = store.body_of(diagnose_reading(reading), link(reading.job, reading.evidence), [("/home/ada/run.log", text)])
    said = str(body)
    assert "hf_abc" not in said and "ada" not in said
    assert body["verdict"] and body["link"].startswith("v=1")
