"""Streamlit's own front end from memory, compressed once; its document says at once what the front end would have to find out.

A first view is some sixty small files, then the script's answer, then twenty more files that the browser learns of only from the answer. Streamlit
opens each file anew for each reader, in a thread and in pieces, and never compressed (``web/server/starlette/starlette_gzip_middleware.py`` of 1.67
says why: it would compress anew each time). Kept in memory, a file is one write, and the later twenty come with the first sixty.

A page that is opened directly asks for the server below its own address first (``explore/_stcore/health``), is told twice that there is none, and
then asks above. The server knows which part of the address is the page's name, so the document says where the server is.
"""

from __future__ import annotations

import asyncio
import gzip
import mimetypes
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit
from streamlit import config

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ROOT = Path(streamlit.__file__).parent / "static"
PIECES = ("TextArea", "FileUploader", "Button", "Html")  # the elements of an empty Diagnose page that are no part of the main bundle
TEXT = (".js", ".css")
YEAR = b"public, immutable, max-age=31536000"  # as Streamlit says it: the names carry a digest of what is in the files
# The browser's own address less the page's name: a proxy may have put more before it than the server knows.
WHERE = "<script>window.__streamlit = {{BACKEND_BASE_URL: location.origin + location.pathname.slice(0, -{letters})}}</script>\n"
_IMPORTED = re.compile(r"""(?:from|import)["']\./([\w.-]+\.js)["']""")
_PAGE = re.compile(r"/[a-z][a-z0-9_-]*")
_LINKED = re.compile(r"static/js/([\w.-]+\.js)")


def pieces(root: Path = ROOT, names: Iterable[str] = PIECES) -> list[str]:
    """The files of these elements and all that they import, less what the document names itself; empty where the front end is built otherwise."""
    index, scripts = root / "index.html", root / "static" / "js"
    if not index.is_file():
        return []
    known = set(_LINKED.findall(index.read_text(encoding="utf-8")))
    wanted = [file.name for name in names for file in scripts.glob(f"{name}.*.js")]
    found: list[str] = []
    for name in wanted:  # grows as it is walked
        if name not in known and (scripts / name).is_file():
            known.add(name)
            found.append(name)
            wanted += _IMPORTED.findall((scripts / name).read_text(encoding="utf-8"))
    return found


class FrontEnd:
    """ASGI middleware around Streamlit's app; what it does not know is left to Streamlit: other methods, ranges, browsers that take no gzip."""

    def __init__(self, app: ASGIApp, root: Path = ROOT) -> None:
        self.app, self.root = app, root
        self.base = "/".join(["", *(part for part in (config.get_option("server.baseUrlPath") or "").split("/") if part)])
        self.files = {f"{self.base}/{file.relative_to(root).as_posix()}": file for file in (root / "static").rglob("*") if file.is_file()}
        self.kept: dict[str, tuple[list[tuple[bytes, bytes]], bytes]] = {}
        named = pieces(root)
        self.links = "".join(f'<link rel="modulepreload" crossorigin href="./static/js/{name}">\n' for name in named).encode()
        index = (root / "index.html").read_text(encoding="utf-8") if named else ""
        for name in {*named, *_LINKED.findall(index)}:
            self._keep(f"{self.base}/static/js/{name}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a file of the front end, or hand it on."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        path, asked = scope["path"], dict(scope["headers"])
        if path in self.files and b"range" not in asked and b"gzip" in asked.get(b"accept-encoding", b""):
            kept = self.kept.get(path)
            headers, body = kept if kept is not None else await asyncio.to_thread(self._keep, path)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        elif insert := self._said(path):
            plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]  # what is compressed cannot be added to
            await self.app({**scope, "headers": plain}, receive, _Document(send, insert).send)
        else:
            await self.app(scope, receive, send)

    def _said(self, path: str) -> bytes:
        """What the document of this address says besides; empty where that is nothing, or it is no document's address."""
        if not path.startswith(self.base):
            return b""
        name = path[len(self.base) :]
        if name in ("", "/"):
            return self.links
        return WHERE.format(letters=len(name)).encode() if _PAGE.fullmatch(name) else b""

    def _keep(self, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Read a file, compress it where that helps, and keep it: some 8 MB if ever a reader asks for all."""
        body, headers = self.files[path].read_bytes(), [(b"cache-control", YEAR), (b"vary", b"Accept-Encoding")]
        headers.append((b"content-type", (mimetypes.guess_type(path)[0] or "application/octet-stream").encode()))
        if path.endswith(TEXT):
            body = gzip.compress(body, 6)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", str(len(body)).encode()))
        self.kept[path] = headers, body
        return headers, body


class _Document:
    """Passes an answer on, with what is said besides put at the end of an HTML document's head."""

    def __init__(self, send: Send, insert: bytes) -> None:
        self.onward, self.insert = send, insert
        self.start: Message | None = None
        self.body = b""

    async def send(self, message: Message) -> None:
        """Hold a document back until it is whole; anything else goes on as it is."""
        if message["type"] == "http.response.start" and _is_page(message):
            self.start = message
        elif self.start is None:
            await self.onward(message)
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                body = self.body.replace(b"</head>", self.insert + b"</head>", 1)
                stale = (b"content-length", b"etag", b"last-modified")  # of the file as Streamlit has it
                kept = [(name, value) for name, value in self.start["headers"] if name.lower() not in stale]
                await self.onward({**self.start, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
                await self.onward({"type": "http.response.body", "body": body})


def _is_page(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start["headers"]}
    return start["status"] == 200 and headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
