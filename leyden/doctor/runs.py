"""What earlier runs left: those that can go on, and halves of versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leyden.algorithm.sft.rundir import RunDir
from leyden.doctor.finding import Finding, ok, skipped, warning

SHOWN = 3  # unfinished runs, latest first


def check_runs(runs: Path) -> Iterator[Finding]:
    if not runs.is_dir():
        yield skipped("runs", f"none at {runs}")
        return
    found = RunDir.in_directory(runs)
    going = [run for run in found if run.driver is not None]
    idle = list(RunDir.interrupted(runs))
    for run in going:
        yield ok("runs", f"{run.id} is being driven by process {run.driver}")
    for run in idle[:SHOWN]:
        yield warning("runs", f"{run.id} was interrupted", f"the same command goes on with it, also with --resume {run.id}")
    if len(idle) > SHOWN:
        yield warning("runs", f"{len(idle) - SHOWN} more were interrupted", f"leyden runs list --runs {runs}")
    for run in found:
        halves = half_versions(run.models)
        if halves and run.has_ended:
            size = sum(path.stat().st_size for half in halves for path in half.rglob("*") if path.is_file())
            fix = f"rm -r {' '.join(map(str, halves))}"
            yield warning("runs", f"{run.id} has ended, and left {len(halves)} half versions ({size >> 20} MB)", fix)
    if not idle:
        yield ok("runs", f"{len(found)} in {runs}, none interrupted")


def half_versions(models: Path) -> list[Path]:
    """Drafts that never became versions. Those of a run that can go on may still be finished."""
    return sorted(models.glob(".version_*.draft"))
