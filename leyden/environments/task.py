"""One row of an environment: what is asked, what is expected, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Task:
    """``input`` is a text, or any JSON value for agents that take one. ``expected`` reaches the scorer only, ``metadata`` nobody.

    Two tasks are equal only if they are the same object. Without an ``id`` a task is called by its place: ``t1``, ``t2``, …
    """

    input: Any
    expected: Any = None
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
