"""A result as JSON Lines: a header, then one line an attempt, in the order of tasks and attempts.

The first line is ``{"format": 1, "kind": "leyden.environment-run", …}``. Each further line is ``{"task": id, "attempt": {…}}``; the first
of a task also holds ``input``, ``expected``, ``metadata`` (and ``planned``), and a task without attempts has one with a null attempt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.stored import decode_attempt, encode, encode_attempt, parse
from leyden.environments.task import Task
from leyden.errors import NotFound, UsageError
from leyden.files import disk_errors, sync

FORMAT = 1
KIND = "leyden.environment-run"


@dataclass(frozen=True)
class Header:
    """All of a result but its tasks and attempts."""

    env_name: str
    k: int
    env_fingerprint: Fingerprint
    policy_fingerprint: Fingerprint
    duration_seconds: float
    stopped_early: str | None
    run_id: str | None
    tasks: int
    attempts: int | None  # None in files of before it was counted


def save(result: EnvironmentRunResult, path: str | PathLike[str]) -> None:
    """See ``EnvironmentRunResult.save``. Missing directories are made."""
    target = Path(path)
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                for line in _lines(result):
                    file.write(line + b"\n")
            sync(temporary)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(target.parent)


def load(path: str | PathLike[str], output_type: Any = None) -> EnvironmentRunResult:
    """See ``EnvironmentRunResult.load``."""
    with Reader(Path(path), output_type) as reader:
        header = reader.header
        tasks: list[tuple[Task, int | None, list[AttemptResult]]] = []
        for task, planned, attempt in reader.entries():
            if not tasks or tasks[-1][0] is not task:
                tasks.append((task, planned, []))
            if attempt is not None:
                tasks[-1][2].append(attempt)
    return EnvironmentRunResult(
        env_name=header.env_name,
        k=header.k,
        env_fingerprint=header.env_fingerprint,
        policy_fingerprint=header.policy_fingerprint,
        task_results=tuple(TaskResult(task, tuple(attempts), planned) for task, planned, attempts in tasks),
        duration_seconds=header.duration_seconds,
        stopped_early=header.stopped_early,
        run_id=header.run_id,
    )


def open_saved(path: str | PathLike[str], output_type: Any = None) -> Reader:
    """The header and the attempts one by one, however many there are: ``with open_saved(path) as saved: saved.header; for task, attempt
    in saved``. Raises ``NotFound``, and ``UsageError`` for what is no saved result, naming the line."""
    return Reader(Path(path), output_type)


class Reader:
    """``header``, and an iterator of (task, attempt). Close it, or use it in a ``with`` block."""

    def __init__(self, path: Path, output_type: Any = None) -> None:
        self._path = path
        self._output_type = output_type
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            raise NotFound(f"no result at {path}", "give the path of a saved result") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", "give the path of a saved result") from None
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[tuple[Task, AttemptResult]]:
        return ((task, attempt) for task, _, attempt in self.entries() if attempt is not None)

    def entries(self) -> Iterator[tuple[Task, int | None, AttemptResult | None]]:
        """Task, how many attempts at it were planned (None: the run's k), attempt; a task without attempts comes once, without one."""
        task, planned, tasks, attempts, last = None, None, 0, 0, -1
        for number, line in enumerate(self._file, 2):
            row = self._parse(line, number)
            try:
                if task is None or row["task"] != task.id:
                    task, planned = Task(row["input"], row["expected"], row["task"], row["metadata"]), row.get("planned")
                    tasks, last = tasks + 1, -1
                attempt = None if row["attempt"] is None else decode_attempt(row["attempt"], self._output_type)
            except (KeyError, TypeError) as error:
                raise self._bad(number, f"no {error}") from error
            except UsageError as error:
                raise self._bad(number, error.message) from error
            if attempt is not None:
                if attempt.index <= last:
                    raise self._bad(number, f"attempt {attempt.index} of task {task.id!r} comes after {last}")
                attempts, last = attempts + 1, attempt.index
            yield task, planned, attempt
        if tasks != self.header.tasks:
            raise self._bad(None, f"it ends after {tasks} of {self.header.tasks} tasks")
        if self.header.attempts not in (None, attempts):
            raise self._bad(None, f"it ends after {attempts} of {self.header.attempts} attempts")

    def _header(self) -> Header:
        row = self._parse(self._file.readline(), 1)
        if row.get("kind") != KIND:
            raise self._bad(1, f"it does not begin with {KIND}")
        if row.get("format") != FORMAT:
            raise UsageError(f"{self._path} has format {row.get('format')!r}, and this version reads {FORMAT}", "read it with a later one")
        try:
            return Header(
                env_name=_of(str, row, "env_name"),
                k=_of(int, row, "k"),
                env_fingerprint=_fingerprint(row["env_fingerprint"]),
                policy_fingerprint=_fingerprint(row["policy_fingerprint"]),
                duration_seconds=float(_of(int | float, row, "duration_seconds")),
                stopped_early=_of(str | None, row, "stopped_early"),
                run_id=_of(str | None, row, "run_id"),
                tasks=_of(int, row, "tasks"),
                attempts=_of(int | None, {"attempts": None, **row}, "attempts"),
            )
        except (KeyError, TypeError) as error:
            raise self._bad(1, f"its header has no good {error}") from error

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = parse(line)
        except ValueError as error:
            raise self._bad(number, f"not JSON ({error})") from error
        if not isinstance(row, dict):
            raise self._bad(number, "not an object")
        return row

    def _bad(self, number: int | None, what: str) -> UsageError:
        where = f"{self._path}:{number}" if number else str(self._path)
        return UsageError(f"{where}: {what}: it is no saved result, or has been changed", "save the result again")


def _lines(result: EnvironmentRunResult) -> Iterator[bytes]:
    yield encode({
        "format": FORMAT,
        "kind": KIND,
        "env_name": result.env_name,
        "k": result.k,
        "env_fingerprint": result.env_fingerprint,
        "policy_fingerprint": result.policy_fingerprint,
        "duration_seconds": result.duration_seconds,
        "stopped_early": result.stopped_early,
        "run_id": result.run_id,
        "tasks": len(result.task_results),
        "attempts": result.n_attempts,
    })  # fmt: skip
    for one in result.task_results:
        first = _task_part(one)
        for attempt in one.attempts or (None,):
            data = b"null" if attempt is None else _named(one.task, f"attempt {attempt.index}", lambda a=attempt: encode_attempt(a))
            yield b'{"task":' + encode(one.task.id) + first + b',"attempt":' + data + b"}"
            first = b""


def _task_part(one: TaskResult) -> bytes:
    fields = {"input": one.task.input, "expected": one.task.expected, "metadata": dict(one.task.metadata), "planned": one.planned}
    return b"," + b",".join(
        b'"' + name.encode() + b'":' + _named(one.task, name, lambda value=value: encode(value)) for name, value in fields.items()
    )


def _named(task: Task, what: str, write: Any) -> bytes:
    try:
        return bytes(write())
    except UsageError as error:
        raise UsageError(f"task {task.id!r}, {what}: {error.message}", error.hint) from error


def _fingerprint(row: dict[str, Any]) -> Fingerprint:
    return Fingerprint(_of(str | None, row, "digest"), _of(dict, row, "components"))


def _of(kind: Any, row: dict[str, Any], name: str) -> Any:
    value = row[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name!r}: {value!r:.40}")
    return value
