"""Diagnoses saved on request: a random id, an expiry, a token that deletes it, and what happened afterwards.

A saved report holds its link (settings and counters), what was said, and, where the reader asked for it, the masked text. Opened, it is
computed again from these; the old verdict stands beside the new one. Ids are random, so that nobody can test whether something was saved.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from advisor import __version__
from advisor.database import OUTCOMES, REPORTS, SETTINGS, WRITES, StoreError
from advisor.reading.masking import mask, mask_name
from advisor.report import Report
from advisor.share import Link

VERSION = 1
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}  # version: what turns such a body into the next one's
MAX_BODY = 300_000  # bytes of JSON
MAX_NOTE = 20_000  # characters of a new error
MAX_OUTCOMES = 50
DAYS = (7, 30, 90)
PER_HOUR = 30  # saves and outcomes of one sender
ALL_PER_HOUR = 2_000  # of all senders together
ON_THE_PAGE = "this page"  # where a fact that the reader put right on the page says it is from
ID = re.compile(r"[A-Za-z0-9_-]{12}")


class Outcome(Struct, frozen=True):
    """What a reader said of it later: fixed, or not, with the new error."""

    recorded: int
    fixed: bool
    note: str


class Saved(Struct, frozen=True):
    """A saved report; times in seconds since 1970."""

    id: str
    body: Mapping[str, Any]
    created: int
    expires: int
    outcomes: tuple[Outcome, ...]


def body_of(report: Report, shared: Link, texts: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """What would be saved, masked: this is shown before anything is. ``texts``: (name, content) of what was pasted, where it is to be kept."""
    return {
        "version": VERSION,
        "advisor": __version__,
        "link": shared.query,
        "verdict": report.verdict,
        "sentence": report.sentence,
        "causes": [{"cause": f.cause, "confidence": round(f.confidence, 2)} for f in report.findings[:4]],
        "plan": [step.technique for step in report.plan.steps],
        "stated": {f.field: f.value for f in report.evidence.facts if f.kind == "stated" and f.where == ON_THE_PAGE},
        "texts": [[mask_name(name), mask(content)] for name, content in texts],
    }


def save(engine: sa.Engine, body: Mapping[str, Any], *, days: int = 30, sender: str = "", now: int | None = None) -> tuple[str, str]:
    """Save; returns the id and the token that deletes it, which is kept nowhere else.

    Raises:
        StoreError: it is too large, or too much was saved in the last hour.
    """
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    if (size := len(text.encode())) > MAX_BODY:
        raise StoreError(f"the report has {size:,} bytes, at most {MAX_BODY:,} are kept: save it without the text")
    if days not in DAYS:
        raise StoreError(f"{days} days: a report is kept for one of {', '.join(map(str, DAYS))} days")
    at, id, token = _now(now), secrets.token_urlsafe(9), secrets.token_urlsafe(18)
    with engine.begin() as connection:
        _allow(connection, sender, at)
        _purge(connection, at)
        connection.execute(REPORTS.insert().values(id=id, token_hash=_hash(token), created=at, expires=at + days * 86_400, body=text))
    return id, token


def find(engine: sa.Engine, id: str, *, now: int | None = None) -> Saved | None:
    """The report of an id; ``None`` where there is none, it has expired or was deleted."""
    if not ID.fullmatch(id):
        return None
    with engine.begin() as connection:
        row = connection.execute(sa.select(REPORTS).where(REPORTS.c.id == id, REPORTS.c.expires > _now(now))).one_or_none()
        if row is None:
            return None
        said = connection.execute(sa.select(OUTCOMES).where(OUTCOMES.c.report == id).order_by(OUTCOMES.c.number)).all()
    return Saved(id, _upgraded(row.body), row.created, row.expires, tuple(Outcome(o.recorded, o.fixed, o.note) for o in said))


def delete(engine: sa.Engine, id: str, token: str) -> bool:
    """Delete it and what was said of it; ``False`` where the token is not its own."""
    with engine.begin() as connection:
        kept = connection.execute(sa.select(REPORTS.c.token_hash).where(REPORTS.c.id == id)).scalar()
        if kept is None or not hmac.compare_digest(kept, _hash(token.strip())):
            return False
        connection.execute(OUTCOMES.delete().where(OUTCOMES.c.report == id))
        connection.execute(REPORTS.delete().where(REPORTS.c.id == id))
    return True


def record(engine: sa.Engine, id: str, *, fixed: bool, note: str = "", sender: str = "", now: int | None = None) -> None:
    """Add an outcome; the note is masked.

    Raises:
        StoreError: there is no such report, it has enough outcomes, the note is too long, or too much was written in the last hour.
    """
    if len(note) > MAX_NOTE:
        raise StoreError(f"the text has {len(note):,} characters, at most {MAX_NOTE:,} are kept: paste the error with its last lines only")
    at = _now(now)
    with engine.begin() as connection:
        _allow(connection, sender, at)
        if connection.execute(sa.select(REPORTS.c.id).where(REPORTS.c.id == id, REPORTS.c.expires > at)).scalar() is None:
            raise StoreError("there is no report of this id any more")
        if (connection.execute(sa.select(sa.func.count()).where(OUTCOMES.c.report == id)).scalar() or 0) >= MAX_OUTCOMES:
            raise StoreError(f"this report has {MAX_OUTCOMES} outcomes already: save a new one")
        connection.execute(OUTCOMES.insert().values(report=id, recorded=at, fixed=fixed, note=mask(note)))


def _allow(connection: sa.Connection, sender: str, at: int) -> None:
    salt = connection.execute(sa.select(SETTINGS.c.value).where(SETTINGS.c.name == "salt")).scalar() or ""
    who = _hash(f"{salt}:{sender}")
    connection.execute(WRITES.delete().where(WRITES.c.at < at - 3600))
    counted = sa.select(sa.func.count()).select_from(WRITES)
    if (connection.execute(counted.where(WRITES.c.sender == who)).scalar() or 0) >= PER_HOUR or (connection.execute(counted).scalar() or 0) >= ALL_PER_HOUR:
        raise StoreError("too much was saved in the last hour: try again later, or take the HTML file")
    connection.execute(WRITES.insert().values(sender=who, at=at))


def _purge(connection: sa.Connection, at: int) -> None:
    gone = sa.select(REPORTS.c.id).where(REPORTS.c.expires <= at)
    connection.execute(OUTCOMES.delete().where(OUTCOMES.c.report.in_(gone)))
    connection.execute(REPORTS.delete().where(REPORTS.c.expires <= at))


def _upgraded(text: str) -> Mapping[str, Any]:
    body: dict[str, Any] = json.loads(text)
    for number in range(int(body.get("version", 0)), VERSION):
        body = UPGRADES[number](body)
    if body["version"] != VERSION:
        raise StoreError(f"the report is of version {body['version']}, this program knows {VERSION}: use the newer program")
    return body


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _now(now: int | None) -> int:
    return int(time.time()) if now is None else now
