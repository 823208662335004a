"""What an environment tries: an agent of the OpenAI Agents SDK, a ``@leyden.rollout`` function, or an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from leyden.environments.output import RunOutput
from leyden.environments.task import Task
from leyden.types import LLM, Rollout


@dataclass
class AttemptContext:
    """What belongs to one attempt alone. A subject commits its output the moment it is there: what comes after (a hanging close, a timeout)
    does not take it away. ``partial`` keeps what is known of a run that fails, for people to read."""

    rollout: Rollout
    llm: LLM | None = None  # where the model answers; the key is this attempt's own
    output: RunOutput | None = None
    partial: RunOutput | None = None
    ids: Mapping[str, str] = field(default_factory=dict)  # fresh "session_id", "user_id"

    def commit(self, output: RunOutput) -> None:
        self.output = output


class Subject(Protocol):
    """One kind of agent, made from what a user gave. ``attempt`` shares nothing with another attempt nor with the caller."""

    name: str

    @property
    def needs_llm(self) -> bool:
        """It cannot run without a model from outside."""
        ...

    async def check(self) -> None:
        """Before any attempt. Raises ``UsageError`` for what cannot be isolated or made, with what to do instead."""
        ...

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        """Run one task and commit its output. Raises what the agent raises."""
        ...

    def question(self) -> Mapping[str, Any]:
        """Of the environment's fingerprint: tools, prompt, output_schema, …, each a JSON value. Raises ``FingerprintError``."""
        ...

    def policy(self, llm: LLM | None) -> Mapping[str, Any]:
        """Of the policy's fingerprint: model, sampling, …, each a JSON value; never a credential. Raises ``FingerprintError``."""
        ...
