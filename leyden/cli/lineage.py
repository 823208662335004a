"""``leyden models lineage``, both ways: what a version was made of, and what became of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.cli.printing import print_json, print_table, say

if TYPE_CHECKING:
    from leyden.algorithm.lineage import Learner, Origin
    from leyden.models.registry import Version


def of_version(
    version: Version,
    line: Sequence[Version],
    runs: Path,
    with_rows: bool,
    as_json: bool,
    describe: Callable[[Version], dict[str, Any]],
    made: Callable[[Version], str],
) -> None:
    from leyden.algorithm.lineage import dataset_of, origins

    rows: dict[str, list[Origin]] = {}
    for ancestor in line if with_rows else ():
        path = dataset_of(ancestor, runs)
        rows[ancestor.name] = origins(path) if path else []
    if as_json:
        described = [describe(ancestor) | _rows(rows.get(ancestor.name), with_rows) for ancestor in line]
        return print_json(version=version.name, lineage=described)
    for ancestor in line:
        manifest = ancestor.manifest
        if manifest.parent is None:
            origin = "imported"
        else:
            dataset = f"{manifest.arm or 'dataset'} {(manifest.dataset_sha256 or 'unknown')[:12]}"
            origin = f"{manifest.parent} trained on {dataset}, run {manifest.run_id or '-'}, iteration {manifest.iteration}"
        print(f"{ancestor.name:12}{made(ancestor)}  {origin}")
        _print_rows(rows.get(ancestor.name, []))


def of_attempt(name: str, runs: Path, tokens: bool, as_json: bool) -> int:
    """``name``: the id of a rollout or of a row, or ``FILE:LINE`` of an export."""
    from leyden.algorithm import lineage

    path, _, number = name.rpartition(":")
    wanted = _of_export(Path(path), int(number)) if path and number.isdigit() else [name]
    found = [(one, lineage.rows_of(runs, one)) for one in wanted]
    rows = {path: origins for _, of_one in found for path, origins in of_one.items()}
    rollouts = {origin.rollout_id for origins in rows.values() for origin in origins}
    rollouts |= {one for one in wanted if not one.startswith("row_")}
    parts = [part for rollout in sorted(rollouts) for part in lineage.parts_of(runs, rollout)]
    learners = lineage.learners(runs, rows)
    unique = {origin.row_id: (origin, path) for path, origins in rows.items() for origin in origins}
    ids = {row: lineage.tokens_of(path, row) for row, (_, path) in unique.items()} if tokens else {}
    if as_json:
        print_json(
            asked=name,
            rollouts=sorted(rollouts),
            rows=[origin.as_dict() | ({"tokens": ids[row]} if tokens else {}) for row, (origin, _) in unique.items()],
            parts=[vars(part) for part in parts],
            learners=[learner.as_dict() for learner in learners],
        )
        return 0 if parts or rows else 1
    if not parts and not rows:
        say(f"nothing is known of {name} in {runs}: no run collected, measured or learnt from it")
        return 1
    for part in parts:
        print(f"run {part.run}  iteration {part.iteration}  {part.step}")
    _print_rows([origin for origin, _ in unique.values()])
    for row, one in ids.items():
        for kind, values in (one or {}).items():
            print(f"{row}  {kind}  {values}")
    for learner in learners:
        print(_told(learner))
    if not learners:
        print("no checkpoint learnt from it")
    return 0


def _of_export(path: Path, number: int) -> list[str]:
    from leyden.environments.exports.sidecar import attempts_of, read_sidecar
    from leyden.errors import NotFound

    lines = read_sidecar(path)["lines"]
    if not 1 <= number <= len(lines):
        raise NotFound(f"{path} has no line {number}", f"it has {len(lines)}, the first is {path}:1")
    return [attempt["rollout_id"] for attempt in attempts_of(lines[number - 1]) if attempt.get("rollout_id")]


def _rows(origins: Sequence[Origin] | None, asked: bool) -> dict[str, Any]:
    return {"rows": [origin.as_dict() for origin in origins or ()]} if asked else {}


def _print_rows(origins: Sequence[Origin]) -> None:
    cells = [
        (o.row_id, o.rollout_id, o.attempt, f"{o.reward:g}", o.task_key, o.checkpoint or "", " ".join(o.generation_ids)) for o in origins
    ]
    if cells:
        print_table(("row", "rollout", "attempt", "reward", "task", "by", "generations"), cells)


def _told(learner: Learner) -> str:
    how = f"trained on from {learner.via}" if learner.via else f"trained on {', '.join(learner.row_ids)}"
    return f"run {learner.run}  {learner.version}{f' ({learner.arm})' if learner.arm else ''}  {how}"
