"""Who may import what: only pages and views know Streamlit, only simulation and measurement know torch, and no stage knows those below."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "advisor").rglob("*.py"))
STREAMLIT_MAY = ("views", "ui")
TORCH_MAY = ("simulation", "measurement")
HEAVY = {"torch", "transformers", "peft", "accelerate"}

# A stage may not import the stages listed against it: they come after it on the way through the house.
BELOW = {
    "reading": {"arithmetic", "rules", "techniques", "planning", "diagnosis", "render", "views", "cli"},
    "architecture": {"reading", "arithmetic", "rules", "techniques", "planning", "diagnosis", "render", "views", "cli"},
    "resolving": {"arithmetic", "rules", "techniques", "planning", "diagnosis", "render", "views", "cli"},
    "arithmetic": {"reading", "rules", "techniques", "planning", "diagnosis", "render", "views", "cli"},
    "rules": {"planning", "diagnosis", "render", "views", "cli"},
    "techniques": {"planning", "diagnosis", "render", "views", "cli"},
    "planning": {"diagnosis", "render", "views", "cli"},
    "diagnosis": {"render", "views", "cli"},
    "render": {"views", "cli"},
}


def imports(file: Path) -> set[str]:
    """Every module a file imports, whole dotted names; imports for type checking only are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


def stage(file: Path) -> str:
    """The stage a file belongs to: its folder within the package, or its own name."""
    parts = file.relative_to(ROOT / "advisor").parts
    return parts[0] if len(parts) > 1 else file.stem


@pytest.mark.parametrize("file", MODULES, ids=lambda f: str(f.relative_to(ROOT)))
def test_layers(file: Path) -> None:
    names = {name.partition(".")[0] for name in imports(file)}
    if stage(file) not in STREAMLIT_MAY:
        assert "streamlit" not in names, f"{file} imports streamlit; only {STREAMLIT_MAY} and pages/ may"
    if stage(file) not in TORCH_MAY:
        assert not names & HEAVY, f"{file} imports {names & HEAVY}; only {TORCH_MAY} may"
    used = {name.split(".")[1] for name in imports(file) if name.startswith("advisor.")}
    assert not used & BELOW.get(stage(file), set()), f"{file} imports a stage that comes after it: {used & BELOW.get(stage(file), set())}"


def test_no_relative_imports_and_no_catch_all_names() -> None:
    for file in MODULES:
        assert file.stem not in {"utils", "helpers", "common", "misc"}, f"{file} has a name that says nothing"


def test_importing_the_engine_is_light() -> None:
    """The command line's engine loads neither torch, streamlit nor pandas."""
    code = "import sys, advisor.diagnosis, advisor.cli; print(','.join(m for m in ('torch','transformers','streamlit','pandas','altair') if m in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == ""


def test_the_top_level_holds_what_the_house_names() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: what is tracked is not known")
    top = {name.split("/")[0] for name in listed.stdout.split("\0") if name}
    named = {"pyproject.toml", "README.md", "Makefile", "Dockerfile", "constraints.txt", "advisor", "pages", "knowledge", "tests"}
    assert {name for name in top if not name.startswith(".")} == named
