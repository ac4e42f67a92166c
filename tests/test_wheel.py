"""The wheel, installed somewhere else, has its pages and knowledge and answers."""

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built wheel unpacked, away from the checkout."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=240)
    (wheel,) = dist.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=240)
    return target


def _run(installed: Path, *args: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from advisor.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=installed, timeout=120)


def test_it_has_pages_and_knowledge(installed: Path) -> None:
    assert (installed / "advisor" / "_pages" / "diagnose.py").is_file()
    assert (installed / "advisor" / "_knowledge" / "gpus.yaml").is_file()
    assert (installed / "advisor" / "ui" / ".streamlit" / "config.toml").is_file()


def test_it_estimates(installed: Path) -> None:
    job = ROOT / "tests" / "jobs" / "j1.yaml"
    out = _run(installed, "estimate", str(job), "--json")
    assert '"max_allocated"' in out.stdout, out.stderr


def test_its_page_answers(installed: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from advisor.cli import main; sys.exit(main())"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(installed), "PYTHONPATH": str(installed)}
    server = subprocess.Popen(
        [sys.executable, "-c", code, "ui", "--port", str(port)], cwd=installed, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2) as answer:
                    assert answer.status == 200
                    return
            except OSError:
                assert server.poll() is None, f"the server ended: {server.stdout.read()!r}"
                time.sleep(0.25)
        pytest.fail("the page did not answer within 30 s")
    finally:
        server.terminate()
        server.wait(timeout=20)
        server.stdout.close()
