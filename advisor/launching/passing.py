"""Starts a program and hands its output on, byte for byte, with its signals and the way it ended.

The child stays in the caller's process group and keeps its standard input, so a terminal's Ctrl-C and Ctrl-Z reach it as they would
without us; where our output is a terminal it gets a terminal too (progress bars and colours stay). A signal sent to us alone is sent on.
POSIX only: Windows has neither process groups nor these signals.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from advisor.launching.kept import Kept

CHUNK = 256 * 1024
PIPE_BYTES = 1024 * 1024
QUIET_SECONDS = 1.0  # after the program's end: what it left running may still print for this long without a pause
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# a terminal sends these to the whole foreground group, the child included: sending them on would deliver them twice
FROM_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})


class Ended(NamedTuple):  # dataclasses would import inspect before the program starts
    """How the program ended: ``status`` as ``waitpid`` gives it. ``streams``: what was kept, by name; ``lost``: bytes that could not be handed on, by why."""

    pid: int
    status: int
    streams: dict[str, Kept]
    lost: Mapping[str, int] = {}

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def code(self) -> int:
        """Its exit code; 128 + signal where one ended it, as shells say it."""
        return os.WEXITSTATUS(self.status) if self.signal is None else 128 + self.signal


class _Stream(NamedTuple):
    kept: Kept
    ours: int  # where its bytes go
    read: int
    write: int
    terminal: bool
    lost: dict[str, int]  # bytes by why they could not be written


def launch(command: Sequence[str]) -> Ended:
    """Run a command to its end.

    Raises:
        OSError: it can not be started (``FileNotFoundError``, ``PermissionError``).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGWINCH, *FORWARDED])
    streams = _streams()
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream.write, number) for number, stream in _targets(streams)],
            setsigmask=before,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # the interpreter ignores these two; a program expects their defaults
        )
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    finally:
        for stream in streams.values():
            os.close(stream.write)
    over = threading.Event()
    pumps = [threading.Thread(target=_pump, args=(stream, over), daemon=True) for stream in streams.values()]
    for pump in pumps:
        pump.start()
    status = _wait(pid, [s for s in streams.values() if s.terminal])
    over.set()
    for pump in pumps:
        pump.join()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    lost: dict[str, int] = {}
    for stream in streams.values():
        for why, size in stream.lost.items():
            lost[why] = lost.get(why, 0) + size
    return Ended(pid, status, {name: stream.kept for name, stream in streams.items()}, lost)


def end_like(signal_number: int) -> None:
    """End this process by the signal that ended the program, without a core dump of ours."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP have no handler to reset
        signal.signal(signal_number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal_number])
    os.kill(os.getpid(), signal_number)


def _streams() -> dict[str, _Stream]:
    """Output and error apart, or as one where both of ours are the same file, so that their order stays."""
    if _same(1, 2):
        return {"output": _open(1)}
    return {"stdout": _open(1), "stderr": _open(2)}


def _targets(streams: dict[str, _Stream]) -> list[tuple[int, _Stream]]:
    if "output" in streams:
        return [(1, streams["output"]), (2, streams["output"])]
    return [(1, streams["stdout"]), (2, streams["stderr"])]


def _same(first: int, second: int) -> bool:
    a, b = os.fstat(first), os.fstat(second)
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def _open(ours: int) -> _Stream:
    if not os.isatty(ours):
        read, write = os.pipe()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return _Stream(Kept(), ours, read, write, False, {})
    read, write = os.openpty()
    settings = termios.tcgetattr(write)
    settings[1] &= ~termios.OPOST  # our own terminal turns line feeds into new lines; twice would change the bytes
    termios.tcsetattr(write, termios.TCSANOW, settings)
    stream = _Stream(Kept(), ours, read, write, True, {})
    _copy_size(stream)
    return stream


def _copy_size(stream: _Stream) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(stream.read, termios.TIOCSWINSZ, fcntl.ioctl(stream.ours, termios.TIOCGWINSZ, b"\0" * 8))


def _pump(stream: _Stream, over: threading.Event) -> None:
    """Hand bytes on until the stream ends, or until it is quiet after the program's end; closing it tells the program when our reader has gone."""
    poll = select.poll()
    poll.register(stream.read, select.POLLIN)
    quiet_since: float | None = None
    try:
        while True:
            if not poll.poll(100):
                if over.is_set():
                    quiet_since = quiet_since or time.monotonic()
                    if time.monotonic() - quiet_since >= QUIET_SECONDS:
                        return
                continue
            quiet_since = None
            chunk = os.read(stream.read, CHUNK)
            if not chunk:
                return
            _hand_on(stream, chunk)
            stream.kept.feed(chunk)
    except OSError:  # EPIPE: our reader has gone; EIO: a terminal's way to say that all its writers have
        return
    finally:
        os.close(stream.read)


def _hand_on(stream: _Stream, chunk: bytes) -> None:
    """Write the chunk. A full disk is no reason to end the program, which would get a closed pipe: what is lost is counted, and said at the end.

    Raises:
        OSError: nobody is there to read it any more (EPIPE, or EIO of a terminal that is gone).
    """
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(stream.ours, view) :]
        except BlockingIOError:  # whoever shares the file with us has made it non-blocking
            select.select([], [stream.ours], [])
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                raise
            why = error.strerror or str(error)
            stream.lost[why] = stream.lost.get(why, 0) + len(view)
            return


def _wait(pid: int, terminals: list[_Stream]) -> int:
    waits = getattr(signal, "sigtimedwait", None)
    if waits is None:  # macOS: who sent a signal can not be told, so those that a terminal may have sent are not sent on
        return _wait_plainly(pid)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        told = waits([signal.SIGCHLD, signal.SIGWINCH, *FORWARDED], 1.0)
        if told is None or told.si_signo == signal.SIGCHLD:
            continue
        if told.si_signo == signal.SIGWINCH:
            for stream in terminals:
                _copy_size(stream)
        elif not (told.si_code > 0 and told.si_signo in FROM_TERMINAL):  # positive codes are the kernel's, so the terminal's
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, told.si_signo)


def _wait_plainly(pid: int) -> int:
    for number in FORWARDED:
        if number not in FROM_TERMINAL:
            signal.signal(number, lambda received, _: os.kill(pid, received))
        else:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    return os.waitpid(pid, 0)[1]
