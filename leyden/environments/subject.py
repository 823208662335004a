"""What an environment tries: an agent of the OpenAI Agents SDK, a ``@leyden.rollout`` function, or an endpoint."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from leyden.environments.output import RunOutput
from leyden.environments.task import Task
from leyden.types import LLM, Rollout


def fresh_ids() -> dict[str, str]:
    """Nobody has been called so before: nothing that is remembered by session or user is found again."""
    return {"session_id": f"session-{secrets.token_hex(16)}", "user_id": f"user-{secrets.token_hex(16)}"}


def cancelled_by_others() -> bool:
    """Whoever runs this task has cancelled it. A ``CancelledError`` without that is the agent's own, and is a failure like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@dataclass
class AttemptContext:
    """What belongs to one attempt alone. A subject commits its output the moment it is there: what comes after (a hanging close, a timeout)
    does not take it away. ``partial`` keeps what is known of a run that fails, for people to read."""

    rollout: Rollout
    llm: LLM | None = None  # where the model answers; the key is this attempt's own
    output: RunOutput | None = None
    partial: RunOutput | None = None
    ids: Mapping[str, str] = field(default_factory=fresh_ids)  # "session_id", "user_id"

    def commit(self, output: RunOutput) -> None:
        self.output = output


Components = Mapping[str, Callable[[], Any]]
"""By name, what gives a JSON value, or raises ``FingerprintError``: then that component alone is unknown."""


@runtime_checkable
class Subject(Protocol):
    """One kind of agent, made from what a user gave. ``attempt`` shares nothing with another attempt nor with the caller.

    One whose outputs are objects has an ``output_type`` too: what was stored as JSON becomes one again by it.
    """

    name: str

    @property
    def needs_llm(self) -> bool:
        """It cannot run without a model from outside."""
        ...

    def accept(self, task: Task) -> None:
        """Raises ``UsageError`` for an input that this kind of agent cannot be given."""
        ...

    async def check(self) -> None:
        """Before any attempt. Raises ``UsageError`` for what cannot be isolated or made, with what to do instead."""
        ...

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        """Run one task and commit its output. Raises what the agent raises."""
        ...

    def question(self) -> Components:
        """Of the environment's fingerprint: tools, prompt, output_schema, …; what is absent is the same for all."""
        ...

    def policy(self, llm: LLM | None) -> Components:
        """Of the policy's fingerprint: model, endpoint, sampling, …; never a credential."""
        ...
