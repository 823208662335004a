"""From a checkpoint to the attempts it learnt from, and from an attempt to every checkpoint that learnt from it.

Both are read from the run directories alone: a version's manifest names its run, its iteration and the digest of its rows; the rows name
their rollouts and generations. No store has to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leyden.algorithm.dataset import dataset_name, read_columns
from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import NotFound
from leyden.files import sha256_of
from leyden.models.registry import Registry
from leyden.models.version import Version

Identity = tuple[str | None, int | None, str | None]  # run, iteration, arm: a fork's copy of a version has the same
COLUMNS = ("row_id", "rollout_id", "attempt", "generation_ids", "reward", "task_key", "checkpoint")


@dataclass(frozen=True)
class Origin:
    """Where one training row came from. ``checkpoint``: of the version that said it."""

    row_id: str
    rollout_id: str
    attempt: int
    generation_ids: tuple[str, ...]
    reward: float
    task_key: str
    checkpoint: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Learner:
    """A checkpoint that an attempt went into: ``row_ids`` of its own dataset, or ``via`` the ancestor it was trained on from."""

    run: str
    version: str
    path: Path
    row_ids: tuple[str, ...] = ()
    via: str | None = None
    arm: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True)
class Part:
    """A step of a run that an attempt took part in."""

    run: str
    iteration: int
    step: str


def dataset_of(version: Version, runs: Path) -> Path | None:
    """The file of the rows that a version was trained on; None for one that was imported.

    Raises ``NotFound`` where it is gone, or is another than the one that was trained on.
    """
    manifest = version.manifest
    if manifest.dataset_sha256 is None or manifest.run_id is None:
        return None
    home = version.path.resolve().parents[1]
    homes = [home.parent / manifest.run_id, runs / manifest.run_id, home]  # a fork keeps names, not rows; a run may have been renamed
    paths = [home / f"iteration_{manifest.iteration}" / dataset_name(manifest.arm) for home in homes]
    there = [path for path in dict.fromkeys(paths) if path.is_file()]
    path = next((path for path in there if sha256_of(path) == manifest.dataset_sha256), None)
    if path is not None:
        return path
    changed = next((path for path in there if path.parents[1].name == manifest.run_id), None)
    if changed is not None:
        raise NotFound(f"{changed} is not what {version.name} was trained on: its sha256 is another", "it was changed since: restore it")
    raise NotFound(f"the rows that {version.name} was trained on are gone", f"they were in run {manifest.run_id}: name its --runs DIR")


def origins(path: Path) -> list[Origin]:
    """Of every row in a dataset, in training order, without its tokens."""
    return [Origin(**row | {"generation_ids": tuple(row["generation_ids"])}) for row in read_columns(path, COLUMNS)]


def tokens_of(path: Path, row: str) -> dict[str, list[int]] | None:
    """``input_ids`` and ``labels`` of one row; None where the dataset does not hold it."""
    found = (item for item in read_columns(path, ("row_id", "input_ids", "labels")) if item["row_id"] == row)
    return next(({name: item[name] for name in ("input_ids", "labels")} for item in found), None)


def datasets(runs: Path) -> Iterator[Path]:
    """The file of every dataset of every run."""
    for run in RunDir.in_directory(runs):
        yield from sorted(run.path.glob("iteration_*/*.arrow"))


def parts_of(runs: Path, rollout_id: str) -> list[Part]:
    """The steps that an attempt took part in: collected, or measured."""
    return [
        Part(run.id, manifest["iteration"], manifest["step"])
        for run in RunDir.in_directory(runs)
        for manifest in run.manifests()
        if rollout_id in manifest["outputs"].get("rollouts", ())
    ]


def rows_of(runs: Path, wanted: str) -> dict[Path, list[Origin]]:
    """The rows of a rollout, or the one of that id, by dataset."""
    found = {}
    for path in datasets(runs):
        rows = [row for row in read_columns(path, ("row_id", "rollout_id")) if wanted in row.values()]
        if rows:
            ids = {row["row_id"] for row in rows}
            found[path] = [origin for origin in origins(path) if origin.row_id in ids]
    return found


def learners(runs: Path, rows: dict[Path, list[Origin]]) -> list[Learner]:
    """Every checkpoint that was trained on rows of these datasets, and those trained on from them.

    A dataset is known by its digest, wherever it lies and whatever its run is called by now. Of an ancestor that was removed the next one
    before it counts.
    """
    learnt = {sha256_of(path): tuple(origin.row_id for origin in origins) for path, origins in rows.items()}
    directories = [(run, {version.name: version for version in Registry(run.models).list()}) for run in RunDir.in_directory(runs)]
    versions = [(run, known, version) for run, known in directories for version in known.values()]
    versions.sort(key=lambda one: one[2].manifest.run_id != one[0].id)  # a fork's copy is the same checkpoint: its own run's comes first
    found: dict[Identity, Learner] = {}
    for run, _, version in versions:
        ids = learnt.get(version.manifest.dataset_sha256 or "")
        if ids is not None:
            found.setdefault(_identity(version), Learner(run.id, version.name, version.path, ids, arm=version.manifest.arm))
    for run, known, version in sorted(versions, key=lambda one: one[2].manifest.created_at):  # a parent is known before its children
        if _identity(version) in found:
            continue
        line = [found.get(_identity(known[name])) for name in reversed(version.manifest.lineage) if name in known]
        if (ancestor := next(filter(None, line), None)) is not None:
            via = f"{ancestor.run}/{ancestor.version}"
            found[_identity(version)] = Learner(run.id, version.name, version.path, via=via, arm=version.manifest.arm)
    return list(found.values())


def _identity(version: Version) -> Identity:
    return version.manifest.run_id, version.manifest.iteration, version.manifest.arm
