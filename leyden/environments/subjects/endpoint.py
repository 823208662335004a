"""A model that is asked directly: one question, one answer, no tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leyden.environments.chat import ask
from leyden.environments.credentials import place_of, without_credentials
from leyden.environments.fingerprint import FingerprintError
from leyden.environments.output import RunOutput, RunStatus
from leyden.environments.subject import AttemptContext, Components
from leyden.environments.task import Task
from leyden.errors import UsageError
from leyden.types import LLM


class Endpoint:
    """An OpenAI-compatible endpoint: the task's input is the user's message (or a whole list of messages), ``system`` stands before it.

    ``llm`` None: the model comes with the run.
    """

    def __init__(self, llm: LLM | None = None, *, system: str | None = None) -> None:
        if llm is not None and not isinstance(llm, LLM):
            raise UsageError(f"an endpoint is a leyden.LLM, not a {type(llm).__name__}", "LLM(endpoint=…, model=…)")
        if system is not None and not isinstance(system, str):
            raise UsageError(f"system is a text, not a {type(system).__name__}", 'for instance system="Answer with a number."')
        self.llm = llm
        self.system = system
        self.name = llm.model if llm else "endpoint"

    @property
    def needs_llm(self) -> bool:
        return self.llm is None

    def accept(self, task: Task) -> None:
        check_messages(task)

    async def check(self) -> None:
        """Nothing here is shared."""

    async def attempt(self, task: Task, context: AttemptContext) -> None:
        llm = context.llm or self.llm
        if llm is None:
            raise UsageError("there is no model to ask", "Endpoint(LLM(endpoint=…, model=…)), or run with llm=…")
        question = task.fresh_input()
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *messages]
        context.partial = RunOutput(content=None, messages=tuple(messages), model=llm.model)
        context.commit(_output(messages, await ask(llm, messages)))

    def question(self) -> Components:
        return {"prompt": lambda: self.system}

    def policy(self, llm: LLM | None) -> Components:
        answers = llm or self.llm
        return llm_components(answers) if answers else {"model": _unknown}


def _unknown() -> Any:
    raise FingerprintError("the model comes with the run")


def _output(messages: list[dict[str, Any]], answer: dict[str, Any]) -> RunOutput:
    choice = answer["choices"][0]
    said = {name: value for name, value in choice["message"].items() if value is not None or name == "content"}
    usage = answer["usage"] if isinstance(answer.get("usage"), dict) else {}
    finish = choice.get("finish_reason")
    return RunOutput(
        content=said.get("content"),
        messages=(*messages, said),
        status=RunStatus.TRUNCATED if finish == "length" else RunStatus.COMPLETED,
        model=answer.get("model"),
        finish_reason=finish,
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _count(told: Any) -> int | None:
    return told if isinstance(told, int) else None


def check_messages(task: Task) -> None:
    """A text, or a list of messages. Raises ``UsageError``."""
    messages = task.input
    if isinstance(messages, str):
        return
    if not isinstance(messages, list | tuple) or not messages or not all(isinstance(message, Mapping) for message in messages):
        kind = type(messages).__name__
        raise UsageError(
            f"the input of task {task.id!r} is a {kind}, not a text or a list of messages",
            "an agent with other inputs is a @leyden.rollout function",
        )


def llm_components(llm: LLM) -> Components:
    """Who answers. A proxy's address says nothing of that: what it stands before is named by deployment and checkpoint."""
    return {
        "model": lambda: [llm.model, llm.deployment, llm.checkpoint],
        "endpoint": lambda: None if llm.proxied else place_of(llm.endpoint),
        "sampling": lambda: without_credentials(llm.sampling_parameters),
    }
