"""Training rows as one Arrow file: written whole, named by its digest, refused when its labels do not fit its tokens."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leyden.algorithm.rows import IGNORED, Row
from leyden.errors import MissingExtra, UsageError
from leyden.files import disk_errors, sha256_of, sync


def dataset_name(arm: str | None = None) -> str:
    """Of the file of training rows, in its iteration's directory. ``arm``: of what was trained beside the candidate."""
    return f"{arm}.arrow" if arm else "rows.arrow"


def row_id(row: Row) -> str:
    """Names a row by where it came from: the same attempt and calls give the same id in every run."""
    return "row_" + hashlib.sha256("\n".join([row.rollout_id, str(row.attempt), *row.generation_ids]).encode()).hexdigest()[:16]


def write_rows(path: Path, rows: Sequence[Row]) -> str:
    """Write an Arrow IPC file (arrow.apache.org/docs/format/Columnar.html) and return its sha256.

    The file appears whole or not at all. Raises ``UsageError`` for rows that ``check_rows`` refuses, ``DiskError``.
    """
    check_rows(rows)
    pa = _arrow()
    schema = pa.schema([
        ("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32())), ("attention_mask", pa.list_(pa.int8())),
        ("row_id", pa.string()), ("rollout_id", pa.string()), ("attempt", pa.int32()), ("generation_ids", pa.list_(pa.string())),
        ("reward", pa.float64()), ("task_key", pa.string()), ("checkpoint", pa.string()),
    ])  # fmt: skip
    table = pa.Table.from_pylist([_as_columns(row) for row in rows], schema=schema)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path.parent, needs=table.nbytes):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(table)
            sync(temporary)
            digest = sha256_of(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync(path.parent)
    return digest


def read_rows(path: Path, sha256: str | None = None) -> list[Row]:
    """The rows of a file by ``write_rows``. Raises ``UsageError`` if it is missing, damaged, or not the file with that digest."""
    if not path.is_file():
        raise UsageError(f"no dataset at {path}")
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise UsageError(f"{path} has changed: its sha256 is {found}, not {sha256}", "select its rows again")
    pa = _arrow()
    try:
        with pa.OSFile(str(path), "rb") as source:
            records = pa.ipc.open_file(source).read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UsageError(f"{path} is not a dataset: {error}") from error
    return [
        Row(
            input_ids=record["input_ids"],
            labels=record["labels"],
            reward=record["reward"],
            rollout_id=record["rollout_id"],
            attempt=record["attempt"],
            task=record["task_key"],
            generation_ids=tuple(record["generation_ids"]),
            checkpoint=record["checkpoint"],
        )
        for record in records
    ]


def read_columns(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Only these columns of the file, row by row: the tokens of a large one stay on the disk. Raises ``UsageError`` for a damaged file."""
    pa = _arrow()
    try:
        with pa.memory_map(str(path)) as source:
            names = pa.ipc.open_file(source).schema.names
            options = pa.ipc.IpcReadOptions(included_fields=[names.index(column) for column in columns])
            records: list[dict[str, Any]] = pa.ipc.open_file(source, options=options).read_all().to_pylist()
    except (pa.ArrowInvalid, ValueError) as error:
        raise UsageError(f"{path} is not a dataset: {error}") from error
    return records


def check_rows(rows: Sequence[Row], max_length: int | None = None) -> None:
    """Refuse what would train in silence on the wrong tokens.

    A label is ``IGNORED`` or the very token at its own position (the loss does the shift), the first token has none (nothing
    predicts it) and the last one has (a row ends in what was sampled). ``max_length``: rows are refused, never cut.
    Raises ``UsageError`` with the first bad row.
    """
    if not rows:
        raise UsageError("the dataset is empty", "nothing was selected: look at the selection's report")
    for number, row in enumerate(rows):
        problem = _problem(row, max_length)
        if problem:
            raise UsageError(f"row {number} ({row_id(row)}) {problem}")


def supervised_tokens(rows: Sequence[Row]) -> int:
    """Labelled tokens in one pass over the rows: what the training child must report."""
    return sum(row.sampled_tokens for row in rows)


def _problem(row: Row, max_length: int | None) -> str | None:
    ids, labels = row.input_ids, row.labels
    if len(ids) != len(labels):
        return f"has {len(ids)} tokens and {len(labels)} labels"
    for position, (token, label) in enumerate(zip(ids, labels, strict=True)):
        if label not in (IGNORED, token):
            return f"has label {label} at position {position}, where the token is {token}: are the labels shifted?"
    if all(label == IGNORED for label in labels):
        return "has no label"
    if labels[0] != IGNORED:
        return "labels its first token, which nothing predicts"
    if labels[-1] == IGNORED:
        return "does not end in a labelled token: are the labels shifted?"
    if max_length is not None and len(ids) > max_length:
        return f"has {len(ids)} tokens, over max_length {max_length}"
    return None


def _as_columns(row: Row) -> dict[str, Any]:
    return {
        "input_ids": row.input_ids,
        "labels": row.labels,
        "attention_mask": row.attention_mask,
        "row_id": row_id(row),
        "rollout_id": row.rollout_id,
        "attempt": row.attempt,
        "generation_ids": list(row.generation_ids),
        "reward": row.reward,
        "task_key": row.task,
        "checkpoint": row.checkpoint,
    }


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise MissingExtra("pyarrow", "train") from None
    return pyarrow
