"""One row of an environment: what is asked, what is expected, and what it is called."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from leyden.errors import UsageError

_KEYS = ("input", "expected", "id", "metadata")


@dataclass(frozen=True, eq=False)
class Task:
    """``input`` is a text, or any JSON value for agents that take one. ``expected`` reaches the scorer only, ``metadata`` nobody.

    Two tasks are equal only if they are the same object. Without an ``id`` a task is called by its place: ``t1``, ``t2``, …
    """

    input: Any
    expected: Any = None
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def fresh(self) -> Task:
        """A copy that shares nothing with this one: what an attempt and its scorer are given. Raises ``UsageError`` if something in it
        cannot be copied."""
        return replace(self, input=self.fresh_input(), expected=self.fresh_expected(), metadata=self._copied(dict(self.metadata)))

    def fresh_input(self) -> Any:
        return self._copied(self.input)

    def fresh_expected(self) -> Any:
        return self._copied(self.expected)

    def _copied(self, value: Any) -> Any:
        try:
            return copy.deepcopy(value)
        except Exception as error:  # __deepcopy__ may be anybody's
            raise UsageError(f"task {self.id!r} cannot be copied: {error}", "make input and expected of plain values") from error

    @classmethod
    def from_jsonl(cls, path: str | PathLike[str]) -> tuple[Task, ...]:
        """Read a file of one JSON object a line, with the keys ``input`` (any JSON value), ``expected``, ``id`` (a text or null) and
        ``metadata`` (an object), of which only ``input`` must be there. UTF-8; blank lines are passed over. An empty file holds no task.

        Raises ``UsageError`` that names the file and the line: an unknown key (``expected_output`` must not silently become no
        expectation), a key given twice, null metadata, a byte order mark, anything that is not JSON.
        """
        file = Path(path)
        try:
            text = file.read_bytes().decode("utf-8")
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}", "give the path of a .jsonl file") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file}: not UTF-8 (byte {error.start})", "save it as UTF-8 without a byte order mark") from error
        if text.startswith("\ufeff"):
            raise UsageError(f"{file}:1: the file begins with a byte order mark", "save it as UTF-8 without one")
        return tuple(_task(cls, line, f"{file}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip())

    @classmethod
    async def afrom_jsonl(cls, path: str | PathLike[str]) -> tuple[Task, ...]:
        """``from_jsonl`` in a thread."""
        return await asyncio.to_thread(cls.from_jsonl, path)


def resolve_ids(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """The tasks with their ids filled in: the declared one (the same object then), else by the place in the environment, ``t1`` on.

    Raises ``UsageError`` for two of one id, an explicit ``t2`` beside the second task without an id among them.
    """
    resolved = tuple(task if task.id is not None else replace(task, id=f"t{place}") for place, task in enumerate(tasks, 1))
    places: dict[str, int] = {}
    for place, task in enumerate(resolved, 1):
        assert task.id is not None
        if (first := places.setdefault(task.id, place)) != place:
            raise UsageError(f"tasks {first} and {place} are both called {task.id!r}", "give each task an id of its own")
    return resolved


def is_id(value: Any) -> bool:
    """None or a text that is not empty and can be written down: half a character cannot."""
    if not isinstance(value, str):
        return value is None
    return value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _task(cls: type[Task], line: str, where: str) -> Task:
    try:
        row = json.loads(line, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {_reason(error)}", "each line is one JSON object") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a {type(row).__name__}, not an object", 'write {"input": …, "expected": …} on each line')
    if unknown := sorted(set(row) - set(_KEYS)):
        raise UsageError(f"{where}: unknown key {unknown[0]!r:.80}", f"a task has the keys {', '.join(_KEYS)}; put others into metadata")
    if "input" not in row:
        raise UsageError(f"{where}: no `input`", 'write {"input": …, "expected": …} on each line')
    if not is_id(row.get("id")):
        raise UsageError(f"{where}: `id` is {json.dumps(row['id'])[:40]}", "an id is a text of whole characters, or is left out")
    if not isinstance(row.get("metadata", {}), dict):
        raise UsageError(f"{where}: `metadata` is {json.dumps(row['metadata'])[:40]}", "metadata is an object, or is left out")
    return cls(**row)


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r:.80} is given twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"not JSON: {name}")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    return str(error) if isinstance(error, ValueError) else "nested too deeply"
