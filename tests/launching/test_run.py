"""`advisor run`: what passes through is unchanged, how it ended is kept, and a memory failure is explained under it."""

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.launching import afterwards, killed
from advisor.launching.kept import Kept
from advisor.launching.passing import Ended

ADVISOR = [sys.executable, "-m", "advisor.cli", "run"]
OOM = (
    "Traceback (most recent call last):\n"
    '  File "/home/someone/train.py", line 9, in <module>\n    loss.backward()\n'
    '  File "/x/site-packages/torch/_tensor.py", line 581, in backward\n    torch.autograd.backward(\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free. "
    "Including non-PyTorch memory, this process has 77.94 GiB memory in use. Of the allocated memory 75.10 GiB is allocated by PyTorch, and "
    "2.05 GiB is reserved by PyTorch but unallocated.\n"
)


@pytest.fixture(autouse=True)
def interrupts_arrive() -> Iterator[None]:
    """A shell lets what it starts in the background ignore Ctrl-C, and its children inherit that: here they must not."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def run(*command: str, options: tuple[str, ...] = ("--no-bundle",), **kwargs: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*ADVISOR, *options, "--", *command], capture_output=True, timeout=60, **kwargs)  # type: ignore[call-overload,no-any-return]


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


@pytest.mark.parametrize("code", [0, 1, 2, 3, 42, 126, 127, 128, 137, 200, 255])
def test_exit_codes(code: int) -> None:
    assert run("sh", "-c", f"exit {code}").returncode == code


def test_every_exit_code_and_signal_is_said_as_shells_say_it() -> None:
    assert [Ended(1, code << 8, {}).code for code in range(256)] == [*range(256)]
    assert [(Ended(1, number, {}).signal, Ended(1, number, {}).code) for number in (1, 9, 15, 31)] == [(1, 129), (9, 137), (15, 143), (31, 159)]


def test_a_hundred_megabytes_pass_unchanged_and_apart() -> None:
    code = (
        "import os\nblock = bytes(range(256)) * 4096\n"
        "for i in range(100):\n    view = memoryview(block)\n    while view: view = view[os.write(1, view):]\n"
        "os.write(2, b'\\xff\\x00 only this \\r\\n')"
    )
    done = run(*python(code))
    expected = hashlib.sha256()
    for _ in range(100):
        expected.update(bytes(range(256)) * 4096)
    assert done.returncode == 0
    assert len(done.stdout) == 100 * 1024 * 1024
    assert hashlib.sha256(done.stdout).digest() == expected.digest()
    assert done.stderr == b"\xff\x00 only this \r\n"


def test_order_is_kept_where_both_go_to_one_place() -> None:
    code = "import os\nfor i in range(300): os.write(1 + i % 2, b'%d ' % i)"
    done = subprocess.run([*ADVISOR, "--", *python(code)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.stdout == b"".join(b"%d " % i for i in range(300))


def test_standard_input_is_the_programs() -> None:
    assert run("cat", input=b"through\x00").stdout == b"through\x00"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_it_ends_by_the_signal_that_ended_the_program(number: int) -> None:
    assert run("sh", "-c", f"kill -{int(number)} $$").returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_sent_to_us_arrive_once(number: int) -> None:
    code = (
        "import signal, sys, time\ngot = []\n"
        f"signal.signal({int(number)}, lambda n, f: got.append(n))\nprint('ready', flush=True)\n"
        "end = time.monotonic() + 20\nwhile not got and time.monotonic() < end: time.sleep(0.01)\ntime.sleep(0.2)\nprint(len(got)); sys.exit(7)"
    )
    child = subprocess.Popen([*ADVISOR, "--", *python(code)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    assert child.stdout.read() == b"1\n"
    assert child.wait(20) == 7
    child.stdout.close()


def test_the_reader_may_leave() -> None:
    done = subprocess.run(f"{' '.join(ADVISOR)} -- yes | head -c 10 | wc -c", shell=True, capture_output=True, timeout=30)
    assert done.stdout.strip() == b"10"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("code", [0, 3])
def test_a_full_disk_is_said_and_the_program_runs_to_its_end(code: int, tmp_path: Path) -> None:
    done, program = tmp_path / "done", f"import sys; print('x' * 3_000_000); open({str(tmp_path / 'done')!r}, 'w').close(); sys.exit({code})"
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([*ADVISOR, "--no-bundle", "--", *python(program)], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == code and done.exists(), "the exit code is the program's"
    assert b"3,000,001 bytes of the program's output could not be written and are lost: No space left on device" in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["estimate", "--help"], ["cards"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_our_own_output_on_a_full_disk_fails(arguments: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command, environment = [*ADVISOR[:-1], *arguments], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, env=environment)
    assert ended.returncode == 2
    assert ended.stderr == b"advisor: standard output cannot be written: No space left on device\n"


def test_an_output_that_somebody_made_non_blocking_loses_nothing() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    started = subprocess.Popen([*ADVISOR, "--no-bundle", "--", *python("print('x' * 2_000_000)")], stdout=write)
    os.close(write)
    time.sleep(0.5)
    with os.fdopen(read, "rb") as output:
        assert len(output.read()) == 2_000_001
    assert started.wait(timeout=60) == 0


def test_a_terminal_stays_a_terminal_and_ctrl_c_arrives_once() -> None:
    code = (
        "import sys, time\nprint(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), flush=True)\n"
        "n = 0\nend = time.monotonic() + 15\n"
        "while time.monotonic() < end:\n"
        "    try:\n        time.sleep(0.3)\n        if n: break\n"
        "    except KeyboardInterrupt: n += 1\nprint('interrupts', n); sys.exit(9)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*ADVISOR, "--", *python(code)])
    seen, sent = b"", False
    while True:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:
            break
        seen += chunk
        if not chunk:
            break
        if b"True True True" in seen and not sent:
            time.sleep(0.2)
            os.write(terminal, b"\x03")
            sent = True
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert b"interrupts 1\r\n" in seen
    assert b"\r\r\n" not in seen


def test_no_such_command() -> None:
    done = run("no-such-command-here")
    assert done.returncode == 127
    assert b"there is no such command" in done.stderr


def test_what_is_left_running_does_not_hold_us() -> None:
    began = time.monotonic()
    assert run("sh", "-c", "sleep 30 & echo done").stdout == b"done\n"
    assert time.monotonic() - began < 15


def test_a_memory_failure_is_explained_and_the_bundle_opens(tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text(
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 8192\nmicro_batch_size: 4\nadapter: lora\nlora_r: 16\noptimizer: adamw_torch\n"
    )
    (tmp_path / "error.txt").write_text(OOM)
    done = run("sh", "-c", "echo training; cat error.txt >&2; exit 1", "--", "cfg.yaml", options=("--bundle", "b.json"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == b"training\n"
    assert done.stderr.startswith(OOM.encode())
    said = done.stderr[len(OOM) :].decode()
    assert "advisor: " in said and "Why: " in said and "advisor diagnose b.json" in said
    bundle = json.loads((tmp_path / "b.json").read_text())
    assert bundle["job"]["batch"]["seq_len"] == 8192
    assert bundle["ended"] == {"code": 1, "signal": None}
    assert "/home/someone" not in (tmp_path / "b.json").read_text()
    again = subprocess.run([sys.executable, "-m", "advisor.cli", "diagnose", "b.json", "--json"], cwd=tmp_path, capture_output=True, timeout=60)
    opened = json.loads(again.stdout)
    assert opened["job"]["batch"]["seq_len"] == 8192
    assert [f["cause"] for f in opened["findings"]][:1] == [f["cause"] for f in bundle["findings"]][:1]


@pytest.mark.parametrize(("kills", "explained"), [(None, True), (1, True), (0, False)])
def test_a_kill_is_explained_unless_the_kernel_says_it_was_not_for_memory(kills: int | None, explained: bool) -> None:
    ended = Ended(4711, signal.SIGKILL, {"output": Kept()})
    assert killed.may_be_memory(ended, kills) is explained
    if explained:
        said = afterwards.explain(["python", "train.py"], ended, kills, None, write=False)
        assert said is not None and "host" in said.lower()


@pytest.mark.parametrize(("status", "said_of"), [(signal.SIGKILL, "The program was"), (137 << 8, "exit code 137"), (247 << 8, "exit code 247")])
@pytest.mark.parametrize("kills", [None, 0])
def test_a_program_that_signal_9_ended_is_never_silent(status: int, said_of: str, kills: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    from argparse import Namespace

    from advisor.commands import run as command

    command._explain(["sh", "train.sh"], Ended(4711, status, {"output": Kept()}), kills, Namespace(bundle=None, no_bundle=True))
    said = capsys.readouterr().err
    assert "signal 9" in said and "host" in said and "dmesg" in said and "memory.events" in said
    if kills == 0:  # the counter was read and has not moved: that is said, and no diagnosis is made of it
        assert said_of in said and "oom_kill" in said and "Do:" not in said
    capsys.readouterr()
    command._explain(["sh", "train.sh"], Ended(4711, 1 << 8, {"output": Kept()}), kills, Namespace(bundle=None, no_bundle=True))
    command._explain(["sh", "train.sh"], Ended(4711, signal.SIGTERM, {"output": Kept()}), kills, Namespace(bundle=None, no_bundle=True))
    assert capsys.readouterr().err == ""


def test_other_failures_stay_uncommented() -> None:
    done = run(*python("raise ValueError('a shape is wrong')"))
    assert done.returncode == 1
    assert b"advisor" not in done.stderr


def test_the_rank_that_ran_out_is_named_among_many_and_a_killed_one_is_only_its_consequence(tmp_path: Path) -> None:
    """As torchrun prints it: lines of two ranks, one of which ran out of memory, then the launcher that ended the other."""
    ranked = "".join(f"[rank1]: {line}\n" for line in OOM.splitlines())
    (tmp_path / "rank1.txt").write_text(ranked)
    script = (
        "(echo '[rank0]: step 7 loss 2.1'; sleep 5) & other=$!; cat rank1.txt >&2; kill -9 $other; "
        "echo 'torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED, exitcode : 1 (pid: 12) local_rank: 1' >&2; exit 1"
    )
    done = run("sh", "-c", script, options=("--bundle", "b.json"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == b"[rank0]: step 7 loss 2.1\n"
    assert ranked.encode() in done.stderr
    assert json.loads((tmp_path / "b.json").read_text())["rank"] == 1
