"""``advisor ui``: the pages, served by Streamlit in this process's place."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from advisor.cli import UserError

APP = Path(__file__).resolve().parents[1] / "ui" / "served.py"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--port", type=int, default=None, metavar="N", help="the port to listen on (default 8501)")
    parser.add_argument("--address", default=None, metavar="A", help="the address to listen on (default: this computer only)")
    parser.add_argument("streamlit", nargs="*", metavar="OPTION", help="after --: options handed to streamlit, e.g. -- --server.baseUrlPath=advisor")


def command(args: argparse.Namespace) -> list[str]:
    """The command line of the server."""
    line = [sys.executable, "-m", "advisor.views", "run", str(APP), f"--server.address={args.address or '127.0.0.1'}"]
    if args.port is not None:
        line.append(f"--server.port={args.port}")
    return line + list(args.streamlit)


def run(args: argparse.Namespace) -> int:
    """Become the server."""
    if find_spec("streamlit") is None:
        raise UserError("the pages need streamlit; install the package again with its dependencies (pip install training-memory-advisor)")
    if args.port is not None and not 0 < args.port < 65_536:
        raise UserError(f"--port {args.port} is no port; ports go from 1 to 65535")
    sys.stdout.flush()
    os.execv(sys.executable, command(args))  # noqa: S606  our own interpreter, no shell
    return 0
