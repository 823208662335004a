"""Quarantined calls tried again: the same calls out of the store, under other settings. Nothing that lies in the run is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leyden.algorithm.attribution import Attribution
from leyden.algorithm.dataset import row_id, write_rows
from leyden.algorithm.harvest import Harvest, Learner, harvest
from leyden.algorithm.quarantine import STEP, Chosen, check_output
from leyden.algorithm.refusals import Quarantined, Refusal, by_reason
from leyden.algorithm.rows import Row, RowsConfig
from leyden.algorithm.sft.collect import READ_BATCH, batches, read_generations
from leyden.algorithm.sft.rundir import RunDir
from leyden.environments.exports.pair import KIND, LEFT, FilePair
from leyden.errors import UsageError
from leyden.files import disk_errors
from leyden.models.registry import Registry
from leyden.server.interface import Store
from leyden.types import Generation, Reward

FORMAT = 1


@dataclass(frozen=True)
class Released:
    """A row that can be made now. ``were``: its calls that were in quarantine → why; its other calls are in rows of the run."""

    iteration: int
    row: Row
    were: dict[str, Refusal]

    def as_dict(self) -> dict[str, Any]:
        """Without its tokens."""
        return {
            "row_id": row_id(self.row),
            "iteration": self.iteration,
            "task_id": self.row.task,
            "rollout_id": self.row.rollout_id,
            "store_attempt": self.row.attempt,
            "generation_ids": list(self.row.generation_ids),
            "tokens": len(self.row.input_ids),
            "reward": self.row.reward,
            "were": {call: str(reason) for call, reason in self.were.items()},
        }


@dataclass
class Replay:
    """``calls`` in quarantine = those in ``released`` + those in ``still`` + ``missing``, which the store does not hold any more."""

    calls: int = 0
    released: list[Released] = field(default_factory=list)
    still: list[Quarantined] = field(default_factory=list)
    missing: int = 0

    def add(self, iteration: int, entries: Sequence[Quarantined], crop: Harvest, stored: Collection[str]) -> None:
        """What became of the entries' calls. ``stored``: those that the store holds."""
        wanted = {call: entry.reason for entry in entries for call in entry.generation_ids}
        self.calls += len(wanted)
        self.missing += sum(call not in stored for call in wanted)
        for row in crop.rows:
            were = {call: wanted[call] for call in row.generation_ids if call in wanted}
            self.released += [Released(iteration, row, were)] if were else []
        for entry in crop.quarantined:
            calls = tuple(call for call in entry.generation_ids if call in wanted)
            self.still += [entry.model_copy(update={"generation_ids": calls})] if calls else []

    @property
    def released_calls(self) -> int:
        return sum(len(one.were) for one in self.released)

    @property
    def repeated_calls(self) -> int:
        """Calls in the released rows that the run has in rows already."""
        return sum(len(one.row.generation_ids) - len(one.were) for one in self.released)

    @property
    def still_by_reason(self) -> dict[str, int]:
        return {str(reason): calls for reason, calls in by_reason(self.still).most_common()}

    def as_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "released_calls": self.released_calls,
            "repeated_calls": self.repeated_calls,
            "missing_calls": self.missing,
            "still": self.still_by_reason,
        }


async def replay(
    run: RunDir,
    store: Store,
    chosen: Chosen,
    rows: Mapping[str, Any],
    attribution: Mapping[str, Any],
    on_attempt: Callable[[], None] = lambda: None,
) -> Replay:
    """Build the rows of the attempts behind the chosen entries, and tell those that pass now from the rest. ``rows`` (``RowsConfig``) and
    ``attribution`` (``Attribution``): what is other than it was at the collection. ``on_attempt`` is called for each that has been read.

    Raises ``NotFound`` where the checkpoint that collected them is gone.
    """
    replayed = Replay()
    for quarantine, entries in chosen:
        manifest = run.read_manifest(quarantine.iteration, STEP)
        assert manifest is not None
        inputs = manifest["inputs"]
        checkpoint = Registry(run.models).get(inputs["version"])
        generations, rewards = await read_attempts(store, entries, on_attempt)
        crop = harvest(
            generations,
            rewards,
            {entry.rollout_id: entry.task for entry in entries if entry.task is not None},
            Learner.of(checkpoint.name, checkpoint.path),
            RowsConfig(**{**inputs["rows"], **rows}),
            Attribution(**{**inputs["attribution"], **attribution}),
            {entry.rollout_id: entry.reason for entry in entries if entry.reason is Refusal.ATTEMPT_FAILED},
        )
        replayed.add(quarantine.iteration, entries, crop, {generation.id for generation in generations})
    return replayed


async def read_attempts(
    store: Store, entries: Iterable[Quarantined], on_attempt: Callable[[], None] = lambda: None
) -> tuple[list[Generation], list[Reward]]:
    """Every call and reward of the attempts that the entries name."""
    by_number: dict[int, dict[str, None]] = {}
    for entry in entries:
        by_number.setdefault(entry.attempt, {})[entry.rollout_id] = None
    generations: list[Generation] = []
    rewards: list[Reward] = []
    for number, ids in by_number.items():
        for batch in batches(list(ids), READ_BATCH):
            generations += [one for one in await read_generations(store, batch, number) if not one.late]
            rewards += await store.list_rewards(batch, number)
            for _ in batch:
                on_attempt()
    return generations, rewards


def check_dataset(path: Path, run: RunDir) -> None:
    """Raise ``UsageError`` for what ``check_output`` refuses, and for another ending than .arrow."""
    check_output(path, run)
    if path.suffix != ".arrow":
        raise UsageError(f"{path} does not end in .arrow", f"for instance {path.with_suffix('.arrow')}")


def write_replay(path: Path, run: RunDir, replayed: Replay, settings: Mapping[str, Any]) -> bool:
    """The released rows as a dataset with a sidecar: both whole, or, where nothing was released, neither (False). ``path``: see
    ``check_dataset``. Raises ``DiskError``.
    """
    with disk_errors(path.parent), FilePair(path) as pair:
        if not replayed.released:
            if not pair.remove():
                raise UsageError(LEFT.format(path), "name another file")
            return False
        digest = write_rows(pair.lines_path, [one.row for one in replayed.released])
        size = pair.lines_path.stat().st_size
        sidecar = {
            "format": FORMAT,
            "kind": KIND,
            "exporter": {"format": "quarantine", "version": version("leyden")},
            "dataset": {"file": path.name, "sha256": digest, "bytes": size, "rows": len(replayed.released)},
            "run": run.id,
            "options": dict(settings),
            "report": replayed.as_dict(),
            "lines": [one.as_dict() for one in replayed.released],
        }
        pair.sidecar_path.write_text(json.dumps(sidecar, indent=2) + "\n")
        pair.publish()
    return True
