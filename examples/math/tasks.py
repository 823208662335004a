"""Tasks for the math agent: a seeded generator of arithmetic, and a loader for problems in files and on the hub.

A task is ``{"input": str, "target": number}``. Train and test sets cannot overlap: a digest of the problem alone decides
which of the two it belongs to, whatever the seed or the mix.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

from leyden.errors import MissingExtra, UsageError

Split = Literal["train", "test"]
TEST_SHARE = 0.25  # of all problems there are


class Task(TypedDict):
    input: str
    target: float


PHRASINGS = {
    "what": "What is {expression}?",
    "calculate": "Calculate {expression}.",
    "find": "Find {expression}.",
    "bare": "{expression} = ?",
    "please": "Please work out {expression} for me.",
}

EXAMPLES = (("What is 52 + 17?", "52 + 17", 69), ("What is 83 - 46?", "83 - 46", 37), ("What is 24 * 3?", "24 * 3", 72))
"""(question, expression, value) as the agent's prompt shows them; the generator never makes one of these."""


@dataclass(frozen=True)
class Component:
    """Problems of one kind: ``terms`` operands of ``digits[0]`` to ``digits[1]`` digits, joined by any of ``ops`` (``+-*/``)."""

    ops: str = "+"
    terms: int = 2
    digits: tuple[int, int] = (2, 2)
    phrasing: str = "what"
    signed: bool = False  # differences of two terms may be negative
    weight: float = 1.0


@dataclass(frozen=True)
class Mix:
    components: tuple[Component, ...]


MIXES: dict[str, Mix] = {
    "sums": Mix((Component("+"),)),
    "two-ops": Mix((Component("+"), Component("-"))),
    "three-ops": Mix((Component("+"), Component("-"), Component("*"))),
    "digits": Mix((Component("+", digits=(2, 4)), Component("-", digits=(2, 4)), Component("*", digits=(1, 3)))),
    "terms": Mix((Component("+-*", terms=2, weight=2.0), Component("+-*", terms=3))),
    "phrasings": Mix(tuple(Component("+-*", phrasing=phrasing) for phrasing in PHRASINGS)),
    "signed": Mix((Component("+", weight=0.15), Component("-", signed=True, weight=0.6), Component("+-*", terms=3, weight=0.25))),
}
"""Candidate mixes, by name; ``calibrate.py`` measures them."""


def make_tasks(mix: Mix | str, n: int, seed: int, split: Split) -> list[Task]:
    """``n`` different problems of a mix. The same arguments give the same list.

    Raises ``UsageError`` for an unknown mix, and for one with fewer than ``n`` problems in this split.
    """
    if isinstance(mix, str):
        if mix not in MIXES:
            raise UsageError(f"unknown mix {mix!r}", f"one of: {', '.join(MIXES)}")
        mix = MIXES[mix]
    rng = random.Random(f"{seed}/{split}")
    weights = [component.weight for component in mix.components]
    seen = {_canonical(expression) for _, expression, _ in EXAMPLES}
    tasks: list[Task] = []
    for _ in range(1000 + 200 * n):
        if len(tasks) == n:
            return tasks
        component = rng.choices(mix.components, weights)[0]
        expression, value = _draw(component, rng)
        key = _canonical(expression)
        if key not in seen and split_of(key) == split:
            seen.add(key)
            tasks.append({"input": PHRASINGS[component.phrasing].format(expression=expression), "target": value})
    raise UsageError(f"this mix has too few problems for {n} {split} tasks ({len(tasks)} found)", "ask for fewer tasks, or for more digits")


def split_of(problem: str) -> Split:
    """Which set a problem belongs to; its digest decides, so no seed can move it."""
    fraction = int.from_bytes(hashlib.sha256(problem.encode()).digest()[:8], "big") / 2**64
    return "test" if fraction < TEST_SHARE else "train"


def load_tasks(source: str | Path, split: Split | None = None, limit: int | None = None) -> list[Task]:
    """Read ``input`` and ``target`` of each row of a ``.jsonl`` file or of a hub dataset's ``train`` split; other fields are left out.

    ``split`` keeps the train or the test part (by digest of the input), ``limit`` the first so many of them.
    Raises ``UsageError``, naming file and line, for a missing file, a bad row, or when nothing is left.
    """
    path = Path(source)
    rows = _read_jsonl(path) if path.suffix == ".jsonl" or path.exists() else _read_hub(str(source))
    tasks = [task for task in rows if split is None or split_of(task["input"]) == split][:limit]
    if not tasks:
        raise UsageError(f"{source}: no tasks{f' in its {split} part' if split else ''}", 'a row is {"input": "…", "target": 12}')
    return tasks


def _draw(component: Component, rng: random.Random) -> tuple[str, int]:
    """An expression in Python's own syntax, and its value. Quotients are exact."""
    low, high = component.digits
    operands = [_operand(rng, low, high) for _ in range(component.terms)]
    ops = [rng.choice(component.ops) for _ in range(component.terms - 1)]
    for i, op in enumerate(ops):
        if op == "-" and component.terms == 2 and not component.signed:
            operands.sort(reverse=True)
        if op == "/":
            if "*" in ops[:i] or "/" in ops[:i]:
                ops[i] = "+"  # a longer product may not divide
            else:
                operands[i] *= operands[i + 1]
    expression = str(operands[0]) + "".join(f" {op} {operand}" for op, operand in zip(ops, operands[1:], strict=True))
    return expression, _evaluate(operands, ops)


def _operand(rng: random.Random, low: int, high: int) -> int:
    digits = rng.randint(low, high)
    return rng.randint(max(2, 10 ** (digits - 1)), 10**digits - 1)


def _evaluate(operands: list[int], ops: list[str]) -> int:
    """``*`` and ``/`` bind tighter than ``+`` and ``-``."""
    addends = [operands[0]]
    for op, operand in zip(ops, operands[1:], strict=True):
        if op == "*":
            addends[-1] *= operand
        elif op == "/":
            addends[-1] //= operand
        else:
            addends.append(operand if op == "+" else -operand)
    return sum(addends)


def _canonical(expression: str) -> str:
    """``5 + 3`` and ``3 + 5`` are one problem: they must not be in both sets."""
    for op in "+*":
        terms = expression.split(f" {op} ")
        if all(term.isdigit() for term in terms):
            return f" {op} ".join(sorted(terms))
    return expression


def _read_jsonl(path: Path) -> Iterator[Task]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _task(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})", "give a .jsonl file, or the name of a dataset on the hub") from None


def _read_hub(name: str) -> Iterable[Task]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise MissingExtra("datasets", "train") from None
    try:
        rows = datasets.load_dataset(name, split="train")
    except Exception as error:  # whatever the hub's client raises, the user sees one line
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"dataset {name!r} cannot be loaded: {reason}", "give a .jsonl file, or check the name and the network") from None
    return (_task(row, f"{name}, row {number}") for number, row in enumerate(rows, 1))


def _task(row: Any, where: str) -> Task:
    if isinstance(row, str):
        try:
            row = json.loads(row)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON ({error})", "each line is one JSON object") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not an object", 'a row is {"input": "…", "target": 12}')
    question, target = row.get("input"), row.get("target")
    if not isinstance(question, str) or not question.strip():
        raise UsageError(f"{where}: `input` must be a text", 'a row is {"input": "…", "target": 12}')
    if isinstance(target, bool) or not isinstance(target, int | float) or not abs(target) <= sys.float_info.max:
        raise UsageError(f"{where}: `target` must be a finite number", 'a row is {"input": "…", "target": 12}')
    return {"input": question, "target": target}
