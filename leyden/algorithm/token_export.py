"""Token rows: what the model read and sampled, id by id, with log-probabilities, as Parquet or Arrow.

The columns of ``dataset.write_rows``, and ``logprobs`` [T]: of each sampled token, null elsewhere. One attempt is one row as far as its
calls extend one another, else several. Token ids cannot be redacted: what they spell is what was said.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leyden.algorithm.dataset import row_id
from leyden.algorithm.harvest import Learner, harvest
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.rows import IGNORED, Row, RowsConfig
from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.candidates import Candidates
from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.pair import LEFT, FilePair
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.sidecar import origin, write_sidecar
from leyden.environments.exports.source import Source
from leyden.environments.results import TaskResult
from leyden.errors import MissingExtra, UsageError
from leyden.files import disk_errors, sha256_of
from leyden.server.interface import Store
from leyden.types import Generation, Reward

NOT_REDACTED = "token rows are not redacted: their ids spell what was said"
ROWS_AT_ONCE = 256  # of a file's row group


class _AnyToken(Collection[int]):
    """Where nobody says which tokens end a turn, any may: no row is refused for its last one."""

    def __contains__(self, token: object) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0


async def export_tokens(
    source: Source,
    store: Store,
    path: Path | str,
    options: ExportOptions,
    eos_ids: Collection[int] | None = None,
    max_tokens: int = 1 << 20,
) -> ExportReport:
    """Write the token rows of a result whose attempts ``store`` holds to ``path`` (``.parquet``, or ``.arrow``), with a sidecar, as
    ``write_export`` does: whole or not at all, the same bytes for the same attempts. ``eos_ids``: the model's end-of-turn tokens; with
    them a row that stopped otherwise is refused.

    Raises ``UsageError`` for another ending of ``path`` and for options that rows of tokens cannot have, ``DiskError``.
    """
    path = Path(path)
    if path.suffix not in (".parquet", ".arrow"):
        raise UsageError(f"{path} is neither .parquet nor .arrow", f"for instance {path.with_suffix('.parquet')}")
    if options.profile not in (None, "none"):
        raise UsageError(f"profile {options.profile} has caps for text", "leave it out")
    options = replace(options, redact=False)
    with disk_errors(path.parent), FilePair(path, scratch=options.dry_run) as pair:
        with _Rows(pair, path.suffix, options, eos_ids or _AnyToken(), max_tokens) as rows:
            for result in source.tasks():
                await rows.add(store, result)
        pair.lines.flush()
        report = rows.report()
        if report.rows == 0:
            return report if options.dry_run or pair.remove() else report.warning_of(LEFT.format(path))
        _check(pair.lines_path, path.suffix, report.rows)
        report = replace(report, sha256=sha256_of(pair.lines_path), bytes=pair.lines_path.stat().st_size)
        if options.dry_run:
            return report
        write_sidecar(pair, source, "tokens", options.as_dict(), report)
        pair.publish()
    return replace(report, path=path)


class _Rows:
    """Writes rows by groups, and counts what becomes of each attempt."""

    def __init__(self, pair: FilePair, suffix: str, options: ExportOptions, eos_ids: Collection[int], max_tokens: int) -> None:
        self._pair = pair
        self._options = options
        self._candidates = Candidates(options, learns_from_failures=False)
        self._learner = Learner(eos_ids)
        self._config = RowsConfig(max_tokens=max_tokens)
        self._refused: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._duplicates = 0
        self._waiting: list[dict[str, Any]] = []
        self._n = 0
        self._writer = _open_writer(pair, suffix)

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    async def add(self, store: Store, result: TaskResult) -> None:
        attempts = self._candidates.of(result)
        generations = await _read(store, attempts)
        for attempt in attempts:
            self._candidates.counts[self._add(result, attempt, generations[attempt.rollout_id, attempt.attempt])] += 1

    def report(self) -> ExportReport:
        return ExportReport(
            counts=dict(self._candidates.counts),
            rows=self._n,
            unscored=dict(self._candidates.unscored),
            refused=dict(self._refused),
            duplicate_rows=self._duplicates,
            warnings=(NOT_REDACTED,) if self._n else (),
        )

    def _add(self, result: TaskResult, attempt: AttemptResult, calls: Sequence[Generation]) -> Outcome:
        assert attempt.score is not None
        if not calls:
            return self._refuse("the store has no call of it")
        reward = Reward(value=attempt.score.value, rollout_id=calls[0].rollout_id, attempt=calls[0].attempt)
        crop = harvest(calls, [reward], {calls[0].rollout_id: str(result.task.id)}, self._learner, self._config)
        rows = crop.rows
        if not rows:
            return Outcome.SKIPPED_TRUNCATED if Refusal.TRUNCATED in crop.reasons else self._refuse(str(crop.quarantined[0].reason))
        new = [row for row in rows if _content(row) not in self._seen]
        if self._options.dedupe and not new:
            return Outcome.SKIPPED_DUPLICATE
        if self._options.limit is not None and self._n + len(rows) > self._options.limit:
            return Outcome.DROPPED_OVER_LIMIT
        self._refused.update({f"a call of an attempt that was written: {reason}": n for reason, n in crop.reasons.items()})
        self._duplicates += len(rows) - len(new)
        for row in rows:
            self._write(result, attempt, row, {call.id: call.logprobs for call in calls})
        return Outcome.WRITTEN

    def _refuse(self, reason: str) -> Outcome:
        self._refused[reason] += 1
        return Outcome.SKIPPED_AMBIGUOUS

    def _write(self, result: TaskResult, attempt: AttemptResult, row: Row, logprobs: dict[str, list[float] | None]) -> None:
        self._seen.add(_content(row))
        self._n += 1
        self._waiting.append(_columns(row, _aligned(row, logprobs)))
        told = {"task_id": result.task.id, "sha256": _content(row), "row_id": row_id(row), **origin(attempt)}
        self._pair.provenance.write(json.dumps({**told, "generation_ids": list(row.generation_ids)}).encode() + b"\n")
        if len(self._waiting) == ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            pa = _arrow()
            self._writer.write_table(pa.Table.from_pylist(self._waiting, schema=_schema(pa)))
            self._waiting = []


async def _read(store: Store, attempts: Sequence[AttemptResult]) -> defaultdict[tuple[str | None, int | None], list[Generation]]:
    """(rollout, attempt) → its calls in order. All of one task's together: they are few."""
    by_number: defaultdict[int, list[str]] = defaultdict(list)
    for attempt in attempts:
        if attempt.rollout_id is not None and attempt.attempt is not None:
            by_number[attempt.attempt].append(attempt.rollout_id)
    found: defaultdict[tuple[str | None, int | None], list[Generation]] = defaultdict(list)
    for number, ids in by_number.items():
        for generation in await store.list_generations(ids, number):
            found[generation.rollout_id, generation.attempt].append(generation)
    return found


def _aligned(row: Row, logprobs: dict[str, list[float] | None]) -> list[float | None]:
    """The calls' log-probabilities at the places of their tokens: sampled tokens are labelled, in the calls' order."""
    told = [logprobs[generation_id] for generation_id in row.generation_ids]
    if any(one is None for one in told):
        return [None] * len(row.labels)
    flat = iter([number for one in told for number in one or ()])
    return [None if label == IGNORED else next(flat, None) for label in row.labels]


def _content(row: Row) -> str:
    from hashlib import sha256

    return sha256(json.dumps([row.input_ids, row.labels]).encode()).hexdigest()


def _columns(row: Row, logprobs: list[float | None]) -> dict[str, Any]:
    return {
        "input_ids": row.input_ids, "labels": row.labels, "attention_mask": row.attention_mask, "logprobs": logprobs,
        "row_id": row_id(row), "rollout_id": row.rollout_id, "attempt": row.attempt, "generation_ids": list(row.generation_ids),
        "reward": row.reward, "task_key": row.task, "checkpoint": row.checkpoint,
    }  # fmt: skip


def _schema(pa: Any) -> Any:
    return pa.schema([
        ("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("attention_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())), ("row_id", pa.string()), ("rollout_id", pa.string()), ("attempt", pa.int32()),
        ("generation_ids", pa.list_(pa.string())), ("reward", pa.float64()), ("task_key", pa.string()), ("checkpoint", pa.string()),
    ])  # fmt: skip


def _open_writer(pair: FilePair, suffix: str) -> Any:
    pa = _arrow()
    if suffix == ".arrow":
        return pa.ipc.new_file(pair.lines, _schema(pa))
    import pyarrow.parquet as pq

    return pq.ParquetWriter(pair.lines, _schema(pa), compression="zstd")


def _check(path: Path, suffix: str, rows: int) -> None:
    """The independent look at what was written: it reads the file back."""
    found = 0
    for batch in _batches(path, suffix):
        for record in batch.to_pylist():
            found += 1
            ids, labels, logprobs = record["input_ids"], record["labels"], record["logprobs"]
            if not len(ids) == len(labels) == len(logprobs) == len(record["attention_mask"]) or not ids:
                raise UsageError(f"row {found} has {len(ids)} tokens, {len(labels)} labels and {len(logprobs)} log-probabilities")
            if any(label not in (IGNORED, token) for label, token in zip(labels, ids, strict=True)) or labels[-1] == IGNORED:
                raise UsageError(f"row {found} has labels that are not its tokens")
            if any(number is not None and label == IGNORED for number, label in zip(logprobs, labels, strict=True)):
                raise UsageError(f"row {found} has log-probabilities of tokens that were not sampled")
    if found != rows:
        raise UsageError(f"the file holds {found} rows, and {rows} were written")


def _batches(path: Path, suffix: str) -> Iterator[Any]:
    pa = _arrow()
    if suffix == ".arrow":
        with pa.OSFile(str(path), "rb") as file:
            reader = pa.ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        return
    import pyarrow.parquet as pq

    yield from pq.ParquetFile(path).iter_batches(batch_size=ROWS_AT_ONCE)


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingExtra("pyarrow", "train") from None
    return pyarrow
