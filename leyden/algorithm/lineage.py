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
    homes = [version.path.parents[1], version.path.parents[2] / manifest.run_id, runs / manifest.run_id]  # a fork keeps names, not rows
    paths = [home / f"iteration_{manifest.iteration}" / dataset_name(manifest.arm) for home in homes if home.name == manifest.run_id]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise NotFound(f"the rows that {version.name} was trained on are gone", f"they were in run {manifest.run_id}: name its --runs DIR")
    if sha256_of(path) != manifest.dataset_sha256:
        raise NotFound(f"{path} is not what {version.name} was trained on: its sha256 is another", "it was changed since: restore it")
    return path


def origins(path: Path) -> list[Origin]:
    """Of every row in a dataset, in training order, without its tokens."""
    return [Origin(**row | {"generation_ids": tuple(row["generation_ids"])}) for row in read_columns(path, COLUMNS)]


def tokens_of(path: Path, row: str) -> dict[str, list[int]] | None:
    """``input_ids`` and ``labels`` of one row; None where the dataset does not hold it."""
    found = (item for item in read_columns(path, ("row_id", "input_ids", "labels")) if item["row_id"] == row)
    return next(({name: item[name] for name in ("input_ids", "labels")} for item in found), None)


def datasets(runs: Path) -> Iterator[tuple[RunDir, int, str | None, Path]]:
    """Every dataset of every run: its run, iteration, arm and path."""
    for run in RunDir.in_directory(runs):
        for path in sorted(run.path.glob("iteration_*/*.arrow")):
            arm = None if path.name == dataset_name() else path.stem
            yield run, int(path.parent.name.removeprefix("iteration_")), arm, path


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
    for *_, path in datasets(runs):
        rows = [row for row in read_columns(path, ("row_id", "rollout_id")) if wanted in row.values()]
        if rows:
            ids = {row["row_id"] for row in rows}
            found[path] = [origin for origin in origins(path) if origin.row_id in ids]
    return found


def learners(runs: Path, rows: dict[Path, list[Origin]]) -> list[Learner]:
    """Every checkpoint that was trained on rows of these datasets, and those trained on from them."""
    versions = [(run, Registry(run.models), version) for run in RunDir.in_directory(runs) for version in Registry(run.models).list()]
    made: dict[Identity, Path] = {(run.id, iteration, arm): path for run, iteration, arm, path in datasets(runs)}
    found: dict[Identity, Learner] = {}
    for run, _, version in versions:
        path = made.get(_identity(version))
        if path in rows and version.manifest.run_id == run.id:  # a fork's copy is the same checkpoint
            ids = tuple(origin.row_id for origin in rows[path])
            found[_identity(version)] = Learner(run.id, version.name, version.path, ids, arm=version.manifest.arm)
    for run, registry, version in versions:  # oldest first, so a parent is known before its children
        identity, parent = _identity(version), version.manifest.parent
        if identity in found or parent is None or version.manifest.run_id != run.id:
            continue
        if (ancestor := found.get(_identity(registry.get(parent)))) is not None:
            via = f"{ancestor.run}/{ancestor.version}"
            found[identity] = Learner(run.id, version.name, version.path, via=via, arm=version.manifest.arm)
    return list(found.values())


def _identity(version: Version) -> Identity:
    return version.manifest.run_id, version.manifest.iteration, version.manifest.arm
