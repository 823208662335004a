"""Which interpreter trains with which backend, and what it is told when it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leyden.algorithm.sft import interpreter as room
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.interpreter import PINS, Interpreter, child_command, examine, resolve_backend, satisfies
from leyden.errors import UsageError
from leyden.process import new_marker

ROOT = Path(__file__).parents[2]
GOOD = {
    "torch": "2.13.0+cpu", "transformers": "5.17.0", "trl": "1.15.0", "peft": "0.21.2", "datasets": "4.8.5", "accelerate": "1.15.0",
    "safetensors": "0.8.0", "pydantic": "2.14.4", "psutil": "7.2.2",
}  # fmt: skip
WITH_UNSLOTH = GOOD | {"unsloth": "2026.10.9"}


def interpreter(versions: dict[str, str], **changes) -> Interpreter:
    return Interpreter(**{"path": "/opt/env/bin/python", "python": (3, 12, 1), "versions": versions, "cuda": None, "broken": {}} | changes)


def fake_python(path: Path, answer: str) -> str:
    """Stands for an interpreter that has what ``answer`` says."""
    path.write_text(f"#!/bin/sh\ncat <<'END'\nlibraries may talk first\n{answer}\nEND\n")
    path.chmod(0o755)
    return str(path)


def resolved(python: str | None, backend: str = "auto") -> str:
    return asyncio.run(resolve_backend(TrainConfig(python=python, backend=backend), marker=new_marker()))


def test_auto_is_unsloth_where_the_training_has_both_it_and_a_gpu_else_trl(tmp_path):
    found = []
    for versions, cuda in ((WITH_UNSLOTH, True), (WITH_UNSLOTH, False), (GOOD, None)):
        answer = json.dumps({"python": [3, 12, 1], "versions": versions, "cuda": cuda, "broken": {}})
        found.append(resolved(fake_python(tmp_path / "python", answer)))
    assert found == ["unsloth", "trl", "trl"]
    assert resolved(fake_python(tmp_path / "python", answer), "trl") == "trl"


def test_this_interpreter_is_examined_where_none_is_named():
    pytest.importorskip("trl")
    found = asyncio.run(examine(None, marker=new_marker()))
    assert found.path == sys.executable and found.python == sys.version_info[:3] and found.problem("trl") is None
    assert resolved(None) == found.best_backend


def test_what_is_missing_or_clashes_is_one_line_with_the_command_that_mends_it():
    assert interpreter(GOOD).problem("trl") is None and interpreter(WITH_UNSLOTH).problem("unsloth") is None
    clash = WITH_UNSLOTH | {"trl": "1.16.0", "datasets": "5.0.1"}
    problem = interpreter(clash, broken={"torchvision": "operator torchvision::nms does not exist"}).problem("unsloth")
    assert problem.message == (
        "/opt/env/bin/python cannot train with unsloth: it has trl 1.16.0, not >=1.15,<1.16; datasets 5.0.1, not >=4.8,<5; "
        "a torchvision that was built for another torch (operator torchvision::nms does not exist)"
    )
    assert problem.hint == (
        "/opt/env/bin/python -m pip install 'trl>=1.15,<1.16' 'datasets>=4.8,<5' && /opt/env/bin/python -m pip uninstall -y torchvision"
    )
    problem = interpreter(GOOD).problem("unsloth")
    assert "it has no unsloth" in problem.message and problem.hint.endswith("pip install 'unsloth>=2026.10.9,<2026.11'")
    assert "Python 3.10.4" in interpreter(GOOD, python=(3, 10, 4)).problem("trl").message


def test_resolving_refuses_what_cannot_train(tmp_path):
    answer = json.dumps({"python": [3, 12, 1], "versions": GOOD, "cuda": None, "broken": {}})
    with pytest.raises(UsageError, match="cannot train with unsloth: it has no unsloth"):
        resolved(fake_python(tmp_path / "python", answer), "unsloth")


@pytest.mark.parametrize("answer", ["", "{", '{"python": [3, 12, 1]}', "[]"])
def test_what_is_no_interpreter_is_refused_by_name(tmp_path, answer):
    with pytest.raises(UsageError, match="is no Python interpreter that works") as failure:
        resolved(fake_python(tmp_path / "python", answer))
    assert "train.python" in failure.value.hint
    with pytest.raises(UsageError, match="cannot start"):
        resolved(str(tmp_path / "nowhere"))


def test_another_interpreter_gets_this_package_and_none_of_the_packages_around_it(tmp_path):
    """As with Leyden installed beside a whole environment, which must not shine through into the other one."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "leyden").symlink_to(ROOT / "leyden")
    (site / "torch.py").write_text("raise SystemExit('the torch of the wrong environment')")
    command = child_command(sys.executable, "job.json")
    at = command.index(str(ROOT / "leyden" / "__init__.py"))
    command[at:] = [str(site / "leyden" / "__init__.py"), "leyden.algorithm.sft.job"]
    code = "\nimport leyden, sys; assert 'torch' not in sys.modules; assert importlib.util.find_spec('torch') is None or "
    code += "'site-packages/torch.py' not in importlib.util.find_spec('torch').origin; print(leyden.__file__, __name__, sys.argv)"
    command[3] += code
    done = subprocess.run([command[0], "-I", *command[1:]], capture_output=True, text=True, cwd=tmp_path, env={}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == [str(site / "leyden" / "__init__.py"), "__main__"]


def test_the_child_needs_nothing_of_the_base_install_that_a_training_environment_lacks():
    """Unsloth's environment has pydantic, psutil and pyarrow, but no orjson, httpx or SQLAlchemy by right."""
    code = "import sys; import leyden.algorithm.sft.child; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True
    )
    loaded = set(done.stdout.split())
    assert "pydantic" in loaded and not loaded & {"orjson", "httpx", "sqlalchemy", "fastapi", "uvicorn", "typer", "rich", "torch"}


@pytest.mark.parametrize(
    ("version", "pin", "fits"),
    [
        ("2.13.0+cu129", ">=2.13,<2.14", True), ("2.14.0", ">=2.13,<2.14", False), ("5", ">=4.8,<5", False),
        ("4.8", ">=4.8,<5", True), ("4.10.1", ">=4.8,<5", True), ("2026.10.9", ">=2026.10.9,<2026.11", True), ("dev", ">=1,<2", False),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version, pin, fits):
    assert satisfies(version, pin) is fits


def test_the_pins_are_those_of_the_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    declared = {"trl": [*optional["train"], *project["dependencies"]], "unsloth": optional["unsloth"]}
    for backend, lines in declared.items():
        for line in lines:
            name = line.split(">")[0]
            if name in PINS[backend]:
                assert line == name + PINS[backend][name], f"extra of {backend}"
    assert project["requires-python"] == ">=" + ".".join(map(str, room.MIN_PYTHON))
