"""Task pools: what may be trained on, and what measures. Each has a manifest of its own; a task that moves is recorded as moved.

A directory holds for each pool ``<pool>.json``, the manifest, and the file of tasks that it names (which ``Task.from_jsonl`` reads). A
manifest appears whole, after its tasks; so a pool is always the old one or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from leyden.environments.fingerprint import FingerprintError, digest
from leyden.environments.leakage import OVERLAP, LeakageGuard, LeakageReport, check_leakage
from leyden.environments.task import Task, resolve_ids
from leyden.errors import Conflict, NotFound, UsageError
from leyden.files import disk_errors, write_atomically

FORMAT = 1
KIND = "leyden.pool"


class PoolName(StrEnum):
    TRAIN = "train"  # sampled, varied, learnt from
    DEV = "dev"  # looked at while working: its failures are read again and again
    FROZEN = "frozen"  # gates checkpoints, and does not change with the training data
    BLIND = "blind"  # run at milestones only


EVALUATION = (PoolName.DEV, PoolName.FROZEN, PoolName.BLIND)


@dataclass(frozen=True)
class Move:
    """One task that came from another pool, and is no evidence there any more."""

    task: str
    sha256: str
    source: PoolName
    reason: str


@dataclass(frozen=True)
class Pool:
    """``provenance`` is yours: where the tasks came from, who made them, under which licence."""

    name: PoolName
    tasks: tuple[Task, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()

    @property
    def sha256(self) -> str:
        """Over the tasks' digests, in any order."""
        return digest(sorted(task_digest(task) for task in self.tasks))

    def manifest(self, file: str) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": KIND,
            "pool": self.name,
            "n": len(self.tasks),
            "sha256": self.sha256,
            "file": file,
            "provenance": dict(self.provenance),
            "tasks": [{"id": task.id, "sha256": task_digest(task)} for task in self.tasks],
            "moves": [asdict(move) for move in self.moves],
        }


def evaluation_tasks(paths: Iterable[Path]) -> dict[str, tuple[Task, ...]]:
    """Name → tasks: the pools that measure in each directory of pools, and each file of tasks.

    Raises ``UsageError`` for one that holds no such task: who asked to keep away from something must not get by with nothing.
    """
    found: dict[str, tuple[Task, ...]] = {}
    for path in paths:
        here = {f"{path}/{name}": tasks for name, tasks in Pools.read(path).evaluation.items()} if path.is_dir() else {}
        here |= {str(path): Task.from_jsonl(path)} if not path.is_dir() else {}
        if not any(here.values()):
            raise UsageError(f"{path} holds no evaluation task", "is it the right one?")
        found |= here
    return found


def task_digest(task: Task) -> str:
    """Of what is asked and expected; not of its id. Raises ``UsageError`` for a task that is no JSON."""
    try:
        return digest([task.input, task.expected])
    except FingerprintError as error:
        raise UsageError(f"task {task.id!r} cannot be named by a digest: {error}", "make input and expected of JSON values") from error


class Pools:
    """The pools of one directory, each of which may be without tasks. Reading checks every digest."""

    def __init__(self, directory: Path, pools: Mapping[PoolName, Pool]) -> None:
        self.directory = directory
        self._pools = {name: pools.get(name, Pool(name, ())) for name in PoolName}

    def __getitem__(self, name: str) -> Pool:
        return self._pools[PoolName(name)]

    @classmethod
    def make(cls, directory: Path | str, tasks: Mapping[str, Iterable[Task]], provenance: Mapping[str, Any] | None = None) -> Pools:
        """Write new pools (name → tasks). Raises ``Conflict`` where there are some, or for a task that is in two of them."""
        directory = Path(directory)
        if any(_manifest(directory, name).exists() for name in PoolName):
            raise Conflict(f"{directory} holds pools already", "name another directory, or move tasks between them")
        pools = cls(directory, {PoolName(name): Pool(PoolName(name), resolve_ids(one), provenance or {}) for name, one in tasks.items()})
        pools._refuse_twice()
        pools.write()
        return pools

    @classmethod
    def read(cls, directory: Path | str) -> Pools:
        """Raises ``NotFound``, and ``UsageError`` for a pool that is not what its manifest says."""
        directory = Path(directory)
        found = {name: _read(directory, name) for name in PoolName if _manifest(directory, name).is_file()}
        if not found:
            raise NotFound(f"no pools in {directory}", f"a pool is a manifest there: {', '.join(f'{name}.json' for name in PoolName)}")
        if missing := [name for name in PoolName if name not in found]:  # else what it holds might be trained on
            raise UsageError(f"{_manifest(directory, missing[0])} is gone", "put it back, or make the pools again in another directory")
        moved = {move.sha256 for move in found.get(PoolName.TRAIN, Pool(PoolName.TRAIN, ())).moves}
        if PoolName.DEV in found:  # a move that was cut short has happened all the same
            found[PoolName.DEV] = _without(found[PoolName.DEV], moved)
        pools = cls(directory, found)
        pools._refuse_twice()
        return pools

    @property
    def evaluation(self) -> dict[str, tuple[Task, ...]]:
        """Name → tasks of every pool that measures: what training must keep away from."""
        return {str(name): self._pools[name].tasks for name in EVALUATION if self._pools[name].tasks}

    def guard(self, overlap: float = OVERLAP) -> LeakageGuard:
        return LeakageGuard(self.evaluation, overlap)

    def check(self, overlap: float = OVERLAP) -> LeakageReport:
        """The training pool against the others."""
        return check_leakage(self[PoolName.TRAIN].tasks, self.evaluation, overlap)

    def moved_to_training(self, ids: Iterable[str], reason: str) -> Pools:
        """The pools with dev tasks (those that fail, say) taken into training, and that recorded: they measure nothing any more, and leave
        dev. ``write`` makes it so.

        Nothing is ever moved out of frozen or blind, nor out of training. Raises ``UsageError`` for an id that dev does not have,
        ``Conflict`` for one that training has already.
        """
        dev, train = self[PoolName.DEV], self[PoolName.TRAIN]
        wanted = list(dict.fromkeys(ids))
        tasks = {task.id: task for task in dev.tasks}
        if unknown := [one for one in wanted if one not in tasks]:
            raise UsageError(f"the dev pool has no task {unknown[0]!r}", f"its ids stand in {_manifest(self.directory, PoolName.DEV)}")
        if taken := {task.id for task in train.tasks} & set(wanted):
            raise Conflict(f"the training pool has a task {min(map(str, taken))!r} already", "give one of the two another id")
        moves = [Move(one, task_digest(tasks[one]), PoolName.DEV, reason) for one in wanted]
        train = replace(train, tasks=(*train.tasks, *(tasks[one] for one in wanted)), moves=(*train.moves, *moves))
        dev = replace(dev, tasks=tuple(task for task in dev.tasks if task.id not in wanted))
        return Pools(self.directory, {**self._pools, PoolName.TRAIN: train, PoolName.DEV: dev})

    @classmethod
    def move(cls, directory: Path | str, ids: Iterable[str], reason: str) -> Pools:
        """``moved_to_training``, read and written while nobody else moves anything. Raises as they do."""
        fd = os.open(directory, os.O_RDONLY) if Path(directory).is_dir() else None
        try:
            if fd is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)  # on the directory itself: it needs no file of its own, and ends with its holder
            pools = cls.read(directory).moved_to_training(ids, reason)
            pools.write()
            return pools
        finally:
            if fd is not None:
                os.close(fd)

    def write(self) -> None:
        """Training first: cut short after it, the record of a move says the rest. Raises ``DiskError``."""
        for pool in self._pools.values():
            self._write(pool)

    def _refuse_twice(self) -> None:
        holder: dict[str, tuple[PoolName, str | None]] = {}
        for pool in self._pools.values():
            for task in pool.tasks:
                name, other = holder.setdefault(task_digest(task), (pool.name, task.id))
                if name is not pool.name:
                    raise Conflict(f"{pool.name}'s {task.id!r} is {name}'s {other!r}", "a task measures, or is trained on")

    def _write(self, pool: Pool) -> None:
        lines = [json.dumps(_as_row(task), ensure_ascii=False) for task in pool.tasks]
        file = self.directory / f"{pool.name}-{digest(lines)[:12]}.jsonl"
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(file, "".join(f"{line}\n" for line in lines))
            write_atomically(
                _manifest(self.directory, pool.name), json.dumps(pool.manifest(file.name), indent=2, ensure_ascii=False) + "\n"
            )
            for old in self.directory.glob(f"{pool.name}-????????????.jsonl"):
                if old != file:
                    old.unlink()


def _manifest(directory: Path, name: PoolName) -> Path:
    return directory / f"{name}.json"


def _as_row(task: Task) -> dict[str, Any]:
    return {"id": task.id, "input": task.input, "expected": task.expected, "metadata": dict(task.metadata)}


def _without(pool: Pool, moved: set[str]) -> Pool:
    return replace(pool, tasks=tuple(task for task in pool.tasks if task_digest(task) not in moved))


def _read(directory: Path, name: PoolName) -> Pool:
    path = _manifest(directory, name)
    try:
        told = json.loads(path.read_bytes())
        if told["kind"] != KIND or told["format"] != FORMAT or told["pool"] != name:
            raise ValueError(f"it is no manifest of the {name} pool")
        tasks = Task.from_jsonl(directory / told["file"])
        moves = tuple(Move(**{**move, "source": PoolName(move["source"])}) for move in told["moves"])
        pool = Pool(name, tasks, told["provenance"], moves)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {error}", "it has been changed by hand: make the pool again") from error
    if pool.sha256 != told["sha256"] or pool.manifest(told["file"])["tasks"] != told["tasks"] or len(tasks) != told["n"]:
        raise UsageError(f"{directory / told['file']} is not what {path.name} says", "it has been changed by hand: make the pool again")
    return pool
