"""The database of saved reports: SQLite by default, PostgreSQL by URL, and the steps that bring an older one up to date.

Off unless ``ADVISOR_DATABASE`` is set: a path (``/data/reports.db``), or a URL (``sqlite:////data/reports.db``, ``postgresql://...``).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

VARIABLE = "ADVISOR_DATABASE"
WAIT_SECONDS = 10  # for another writer of SQLite, and for a connection
LOCK = 0x61647669  # "advi": the advisory lock under which one instance at a time migrates a PostgreSQL database

META = sa.MetaData()
SETTINGS = sa.Table("settings", META, sa.Column("name", sa.String(40), primary_key=True), sa.Column("value", sa.String(200), nullable=False))
REPORTS = sa.Table(
    "reports",
    META,
    sa.Column("id", sa.String(24), primary_key=True),
    sa.Column("token_hash", sa.String(64), nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),  # seconds since 1970, UTC
    sa.Column("expires", sa.BigInteger, nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
)
OUTCOMES = sa.Table(
    "outcomes",
    META,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("report", sa.String(24), nullable=False, index=True),
    sa.Column("recorded", sa.BigInteger, nullable=False),
    sa.Column("fixed", sa.Boolean, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
)
WRITES = sa.Table(  # who wrote when: rows older than an hour are deleted, and the sender is a salted hash
    "writes",
    META,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("sender", sa.String(64), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
)


class StoreError(ValueError):
    """Saved reports cannot be used as asked; the message is the sentence to show."""


def _first(connection: sa.Connection) -> None:
    META.create_all(connection, tables=[REPORTS])


def _outcomes_and_limits(connection: sa.Connection) -> None:
    META.create_all(connection, tables=[OUTCOMES, WRITES])
    connection.execute(SETTINGS.insert().values(name="salt", value=secrets.token_hex(16)))


# In order, each run once and never changed afterwards: a later need is a later step. A step spells out its own tables once META moves on.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_first, _outcomes_and_limits)


def configured(environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL that the environment names; ``None``: saving is off."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    if "://" not in text:
        return f"sqlite:///{Path(text).absolute()}"
    scheme, _, rest = text.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else text


@cache
def connected(url: str) -> sa.Engine:
    """The engine of a URL, its database brought up to date.

    Raises:
        StoreError: it cannot be reached, is not one of the two kinds, or is of a later version of this program.
    """
    kind = url.partition(":")[0]
    if not kind.startswith(("sqlite", "postgresql")):
        raise StoreError(f"{VARIABLE} names a {kind} database; saved reports are kept in SQLite (a path) or PostgreSQL (postgresql://...)")
    try:
        engine = _engine(url)
        with engine.begin() as connection:
            migrate(connection)
    except ModuleNotFoundError as error:
        raise StoreError(f"PostgreSQL needs the driver {error.name}: pip install 'training-memory-advisor[postgres]'") from None
    except sa.exc.SQLAlchemyError as error:
        raise StoreError(f"the database that {VARIABLE} names cannot be used: {str(getattr(error, 'orig', None) or error).splitlines()[0]}") from None
    return engine


def _engine(url: str) -> sa.Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True, pool_size=4, max_overflow=12, connect_args={"connect_timeout": WAIT_SECONDS})
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args={"timeout": WAIT_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for a transaction that reads before it writes
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def migrate(connection: sa.Connection) -> int:
    """Run the steps that this database has not seen; returns how many there are now. One instance at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    META.create_all(connection, tables=[SETTINGS])
    row = connection.execute(sa.select(SETTINGS.c.value).where(SETTINGS.c.name == "version")).scalar()
    done = int(row or 0)
    if done > len(MIGRATIONS):
        raise StoreError(f"the database is of version {done}, this program knows {len(MIGRATIONS)}: use the newer program")
    for number, step in enumerate(MIGRATIONS[done:], done + 1):
        step(connection)
        if number == 1:
            connection.execute(SETTINGS.insert().values(name="version", value="1"))
        else:
            connection.execute(SETTINGS.update().where(SETTINGS.c.name == "version").values(value=str(number)))
    return len(MIGRATIONS)
