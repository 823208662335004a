"""The quarantine of an iteration: every call that was collected and is in no row, by reference and with its reason.

It lies beside the iteration's manifests, one JSON object a line, and the manifest of the collection names its digest. What was said is in
the store; a detail may quote a few characters of it, without secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from leyden.algorithm.harvest import Harvest
from leyden.algorithm.refusals import Quarantined
from leyden.algorithm.sft.rundir import RunDir
from leyden.environments.exports.pair import check_target
from leyden.errors import NotFound, UsageError
from leyden.files import disk_errors, sha256_of, write_atomically

FILE = "quarantine.jsonl"
STEP = "collect"  # whose manifest tells of it


@dataclass(frozen=True)
class Quarantine:
    """Of one iteration. ``calls``, ``rows``, ``merged_calls``: of its collection, with ``calls`` = those + what is in ``entries``."""

    iteration: int
    calls: int
    rows: int
    merged_calls: int
    entries: list[Quarantined]


Chosen = Sequence[tuple[Quarantine, Sequence[Quarantined]]]
"""Of each iteration its quarantine, and the entries that are asked for."""


def write_quarantine(directory: Path, harvest: Harvest) -> dict[str, Any]:
    """Write the file into an iteration's directory, whole or not at all; what its manifest says of it. Raises ``DiskError``."""
    path = directory / FILE
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(entry.model_dump_json(exclude_none=True) + "\n" for entry in harvest.quarantined))
    return {
        "file": FILE,
        "sha256": sha256_of(path),
        "entries": len(harvest.quarantined),
        "calls": harvest.quarantined_calls,
        "reasons": harvest.reasons,
    }


def read_quarantine(run: RunDir, iteration: int) -> Quarantine:
    """Raises ``NotFound`` for an iteration that has collected nothing yet, ``UsageError`` for a file that its manifest does not name."""
    manifest = run.read_manifest(iteration, STEP)
    told = manifest["outputs"].get("quarantine") if manifest else None
    if manifest is None or told is None:
        there = ", ".join(map(str, iterations(run)))
        hint = f"there are: {there}" if there else f"see how it stands: leyden runs show {run.id}"
        raise NotFound(f"iteration {iteration} of run {run.id} has no quarantine", hint)
    path = run.path / f"iteration_{iteration}" / told["file"]
    if not path.is_file():
        raise NotFound(f"the quarantine of iteration {iteration} is gone: {path}", "restore it from a copy")
    if sha256_of(path) != told["sha256"]:
        raise UsageError(f"{path} is not what was collected: its sha256 is another", "it was changed since: restore it")
    rows = manifest["outputs"]["rows"]
    return Quarantine(iteration, manifest["outputs"]["calls"], rows["rows"], rows["merged_calls"], _parse(path))


def iterations(run: RunDir) -> list[int]:
    """Those that have a quarantine, in order."""
    manifests = (manifest for manifest in run.manifests() if manifest["step"] == STEP)
    return sorted(manifest["iteration"] for manifest in manifests if "quarantine" in manifest["outputs"])


def check_output(path: Path, run: RunDir) -> None:
    """Raise ``UsageError`` for what no file can be written to, and for what lies in the run: it stays as it is."""
    if not path.name:
        raise UsageError(f"{path} is a directory", "name a file in it")
    check_target(path)
    if path.resolve().is_relative_to(run.path.resolve()):
        raise UsageError(f"{path} lies in the run, which stays as it is", "name a file elsewhere")


def _parse(path: Path) -> list[Quarantined]:
    try:
        return [Quarantined.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path} was written by another version: {first['msg']}", "use the version that collected it") from error
