"""Streamlit's front end from memory: the same bytes as its own files, compressed once, and what the first page needs named in its document."""

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from streamlit import config

from advisor.views import front_end
from advisor.views.front_end import ROOT, FrontEnd, pieces

PAGE = "<html><head><title>x</title></head><body></body></html>"


async def page(_: Any) -> HTMLResponse:
    return HTMLResponse(PAGE, headers={"etag": "old"})


async def other(_: Any) -> PlainTextResponse:
    return PlainTextResponse("by streamlit")


INNER = Starlette(routes=[Route("/", page), Route("/plan", page), Route("/{rest:path}", other)], middleware=[Middleware(GZipMiddleware, minimum_size=1)])


def get(app: Any, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of a request."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": named, "root_path": "",
             "scheme": "http", "server": ("x", 80), "client": ("y", 1), "http_version": "1.1", "asgi": {"version": "3.0"}}  # fmt: skip
    with ThreadPoolExecutor(1) as apart:  # a browser's tests in the same process leave an event loop running in theirs
        apart.submit(lambda: asyncio.run(app(scope, receive, send))).result()
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])


@pytest.fixture(scope="module")
def app() -> FrontEnd:
    return FrontEnd(INNER)


def test_every_element_of_the_first_page_is_found_in_the_front_end_that_is_installed() -> None:
    found = pieces()
    for name in front_end.PIECES:
        assert any(file.startswith(f"{name}.") for file in found), name
    assert all((ROOT / "static" / "js" / file).is_file() for file in found)
    assert len(found) == len(set(found)) > len(front_end.PIECES)


def test_a_file_is_sent_compressed_and_unpacks_to_itself(app: FrontEnd) -> None:
    file = next((ROOT / "static" / "js").glob("index.*.js"))
    status, headers, body = get(app, f"/static/js/{file.name}", accept_encoding="gzip, deflate, br")
    assert status == 200 and headers[b"content-encoding"] == b"gzip" and b"javascript" in headers[b"content-type"]
    assert int(headers[b"content-length"]) == len(body) < file.stat().st_size / 2
    assert gzip.decompress(body) == file.read_bytes()
    assert b"immutable" in headers[b"cache-control"] and headers[b"vary"] == b"Accept-Encoding"


def test_a_font_is_sent_as_it_is(app: FrontEnd) -> None:
    file = next((ROOT / "static" / "media").glob("*.woff2"))
    _, headers, body = get(app, f"/static/media/{file.name}", accept_encoding="gzip")
    assert b"content-encoding" not in headers and body == file.read_bytes()


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/static/js/../../index.html", "GET", {"accept_encoding": "gzip"}),
        ("/static/js/none.js", "GET", {"accept_encoding": "gzip"}),
        ("//static/js/index.js", "GET", {"accept_encoding": "gzip"}),
        (None, "GET", {}),
        (None, "HEAD", {"accept_encoding": "gzip"}),
        (None, "GET", {"accept_encoding": "gzip", "range": "bytes=0-9"}),
        ("/media/abc", "GET", {}),
        ("/_stcore/health", "GET", {}),
    ],
)
def test_everything_else_is_left_to_streamlit(app: FrontEnd, path: str | None, method: str, headers: dict[str, str]) -> None:
    path = path or f"/static/js/{next((ROOT / 'static' / 'js').glob('index.*.js')).name}"
    _, sent, body = get(app, path, method, **headers)
    assert (gzip.decompress(body) if b"content-encoding" in sent else body) == b"by streamlit"


def test_the_document_names_the_pieces_and_loses_what_was_said_of_the_file(app: FrontEnd) -> None:
    status, headers, body = get(app, "/", accept_encoding="gzip")
    text = body.decode()
    assert status == 200 and int(headers[b"content-length"]) == len(body) and b"etag" not in headers
    assert all(f'href="./static/js/{name}"' in text for name in pieces())
    assert text.index("modulepreload") < text.index("</head>") and text.endswith("</body></html>")


def test_a_page_by_its_own_address_says_where_the_server_is(app: FrontEnd) -> None:
    _, headers, body = get(app, "/plan", accept_encoding="gzip")
    assert b"content-encoding" not in headers and int(headers[b"content-length"]) == len(body)
    assert f"location.pathname.slice(0, -{len('/plan')})".encode() in body and b"modulepreload" not in body


def test_under_a_base_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "get_option", lambda name: "/team/advisor/" if name == "server.baseUrlPath" else None)
    app = FrontEnd(Starlette(routes=[Route("/team/advisor", page), Route("/team/advisor/plan", page), Route("/{rest:path}", other)]))
    file = next((ROOT / "static" / "js").glob("index.*.js"))
    assert gzip.decompress(get(app, f"/team/advisor/static/js/{file.name}", accept_encoding="gzip")[2]) == file.read_bytes()
    assert get(app, f"/static/js/{file.name}", accept_encoding="gzip")[2] == b"by streamlit"
    assert b"modulepreload" in get(app, "/team/advisor")[2]
    assert b"slice(0, -5)" in get(app, "/team/advisor/plan")[2]


def test_a_front_end_that_is_built_otherwise_is_left_alone(tmp_path: Path) -> None:
    assert pieces(tmp_path) == []
    assert get(FrontEnd(INNER, tmp_path), "/")[2].decode() == PAGE
