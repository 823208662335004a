"""The house rules: which room may import which, how long a file may be, what may not stand in it, and that the door opens quickly."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import leyden
import leyden.cli
from leyden.errors import EXTRAS

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "leyden").rglob("*.py"))
MAX_LINES = 400

GROUND = {"types", "record", "audit", "errors", "files", "process", "failpoint", "together", "heap", "ports"}
ARROWS = {
    "errors": set(),
    "record": set(),
    "audit": {"record"},
    "types": {"errors", "record", "audit"},
    "files": {"errors"},
    "process": {"errors"},
    "failpoint": set(),
    "together": {"errors"},
    "heap": set(),
    "ports": {"errors"},
    "http": set(),
    "server": GROUND | {"http"},
    "proxy": GROUND | {"http", "server"},
    "runners": GROUND | {"server"},
    "environments": GROUND | {"server", "proxy", "runners"},
    "models": GROUND,
    "algorithm": GROUND | {"server", "proxy", "runners", "environments", "models"},
}
ARROWS["doctor"] = {*ARROWS["algorithm"], "algorithm"}
ARROWS["trainer"] = {*ARROWS["doctor"], "doctor"}
ARROWS["agentlightning"] = {*ARROWS["trainer"], "trainer"}
ARROWS["cli"] = {*ARROWS["trainer"], "trainer"}
ARROWS["__main__"] = {"cli"}
ARROWS["__init__"] = {*ARROWS["cli"], "cli"}

STORE_DOORS = {f"leyden.server{door}" for door in ("", ".interface", ".client", ".sqlstore", ".queries", ".messages", ".codec")}
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "gguf", "safetensors", "agents", "openai", "mcp", "litellm")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "leyden").parts[0].removesuffix(".py")


def runs_in_a_child(path: Path) -> bool:
    """Heavy imports may stand at the top there; ``test_the_light_doors_stay_light`` watches that nobody else loads it."""
    return any(path.is_relative_to(ROOT / "leyden" / room) for room in ("models/embedded", "algorithm/sft"))


def imports(path: Path, tree: ast.AST) -> set[str]:
    """Every module of ours that the file imports, at any depth, type checking included."""
    package = ["leyden", *path.relative_to(ROOT / "leyden").parent.parts]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module.split(".") if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name for name in names if is_module(name)} | ({module} if not all(is_module(name) for name in names) else set())
    return {module for module in found if module.split(".")[0] == "leyden"}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_the_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    for module in imports(path, ast.parse(path.read_text())):
        parts = module.split(".")
        assert len(parts) > 1 or room == "cli", f"{path.name} imports the front door `leyden`: import the room"
        target = parts[1] if len(parts) > 1 else "__init__"
        assert target == room or target in ARROWS[room] or room == "cli", f"{room} must not import {module}"


@pytest.mark.parametrize("room", ["proxy", "runners", "environments", "algorithm"])
def test_other_rooms_touch_the_store_through_its_doors_only(room: str) -> None:
    for path in (ROOT / "leyden" / room).rglob("*.py"):
        inside = {module for module in imports(path, ast.parse(path.read_text())) if module.startswith("leyden.server")}
        assert inside <= STORE_DOORS, f"{path.relative_to(ROOT)} reaches into the store"


@pytest.mark.parametrize("path", [path for path in SOURCES if not runs_in_a_child(path)], ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_imports_stay_inside_what_needs_them(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        heavy = [module for module in modules if module.split(".")[0] in HEAVY]
        assert not heavy, f"{heavy[0]} at the top of {path.relative_to(ROOT)}"


LIGHT_DOORS = (
    "leyden.server.client", "leyden.runners", "leyden.runners.runner", "leyden.proxy", "leyden.trainer", "leyden.models.registry",
    "leyden.agentlightning",
)  # fmt: skip


@pytest.mark.parametrize("module", LIGHT_DOORS)
def test_the_light_doors_stay_light(module: str) -> None:
    assert loaded_by(f"import {module}") & set(HEAVY) == set()


def test_importing_leyden_loads_no_dependency_and_touches_no_network() -> None:
    third_party = loaded_by("import leyden; dir(leyden)") - set(sys.stdlib_module_names) - {"leyden", "__main__"}
    third_party -= loaded_by("pass")  # what the environment itself loads at start, as editable installs do
    assert third_party == set()


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after ``code``, which must not open a socket."""
    guard = "import sys, socket\ndef refuse(*args, **kwargs): raise SystemExit('the network was touched')\n"
    guard += "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse\n"
    code = f"{guard}{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in leyden.__all__:
        assert getattr(leyden, name).__doc__, f"leyden.{name} has no docstring of its own"


def test_public_methods_are_documented() -> None:
    for name in ("LLMProxy", "Trainer"):
        for method, value in vars(getattr(leyden, name)).items():
            if inspect.isfunction(value) and not method.startswith("_"):
                assert value.__doc__, f"leyden.{name}.{method} has no docstring"


def test_the_lists_of_public_names_agree() -> None:
    tree = ast.parse((ROOT / "leyden/__init__.py").read_text())
    for_checkers = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert for_checkers - {"annotations", "TYPE_CHECKING", "Any", "import_module"} == set(leyden.__all__) == set(leyden._ROOM_OF)
    assert set(leyden.__all__) <= set(dir(leyden))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        leyden.nonsense  # noqa: B018


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{lines} lines: split it by noun"


def test_no_path_of_somebodys_machine_is_written_down() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    machine = re.compile(r"(?<![\w.\-{}])/(?:home|root|work|Users)/")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or b"\0" in (data := path.read_bytes()):
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            assert not machine.search(line), f"{name}:{number}: {line.strip()}"


def test_every_extra_that_the_command_line_names_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])


def test_make_and_ci_run_the_tests_the_readme_names() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "check", "clean", "test-engines", "test-faults"} <= targets


NAMED_TEST = re.compile(r"`(?:tests/)?([\w/]+\.py)::(test_\w+)")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    for file, name in NAMED_TEST.findall(page.read_text()):
        path = ROOT / "tests" / file
        assert path.is_file() and re.search(rf"^\s*(?:async )?def {name}\(", path.read_text(), re.M), f"{page.name}: {file}::{name}"
