"""A finding: what was looked at, how it is, and what to type where it is not well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a run works, but less well than it could, or something lies about
    PROBLEM = "problem"  # a run would fail
    SKIPPED = "skipped"  # not there, or could not be looked at


@dataclass(frozen=True)
class Finding:
    """``detail`` is one line. ``fix`` is what to type or do; every problem has one."""

    check: str
    outcome: Outcome
    detail: str
    fix: str | None = None


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Outcome.OK, _line(detail))


def warning(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, Outcome.WARNING, _line(detail), fix)


def problem(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, Outcome.PROBLEM, _line(detail), fix)


def skipped(check: str, detail: str, fix: str | None = None) -> Finding:
    return Finding(check, Outcome.SKIPPED, _line(detail), fix)


def _line(text: str) -> str:
    return " ".join(text.split())
