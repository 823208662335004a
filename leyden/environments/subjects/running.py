"""One run of the OpenAI Agents SDK, with its calls written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leyden.environments.connections import openai_client
from leyden.environments.subjects.conversation import Outcomes, output_of
from leyden.environments.subjects.recording import Log, RecordedProvider, Turns, recorded
from leyden.errors import MissingExtra

try:
    from agents import AgentsException, OpenAIChatCompletionsModel, RunConfig, Runner
    from agents.run_config import DEFAULT_MAX_TURNS
except ModuleNotFoundError as error:
    raise MissingExtra("agents", "runners") from error

if TYPE_CHECKING:
    from agents import Model

    from leyden.environments.subject import AttemptContext
    from leyden.environments.subjects.isolation import Isolation
    from leyden.types import LLM


async def run_recorded(isolated: Isolation, question: Any, given: Any, max_turns: int | None, context: AttemptContext) -> None:
    """``Runner.run`` as a stranger's first question, with its calls written down."""
    log, outcomes = Log(), Outcomes()
    config = RunConfig(tracing_disabled=True, model_provider=RecordedProvider(log))
    if context.llm is not None:
        config.model = recorded(model_of(context.llm), log, context.llm.sampling_parameters)
    for agent in isolated.agents:
        if agent.model is not None and not isinstance(agent.model, str):
            agent.model = recorded(agent.model, log)
    outcomes.watch(config, isolated)
    items: list[Any] = []
    try:
        result = await Runner.run(
            isolated.agents[0], question, context=given, max_turns=max_turns or DEFAULT_MAX_TURNS, hooks=Turns(log), run_config=config
        )
    except AgentsException as error:
        items = error.run_data.new_items if error.run_data else []
        if log.calls and log.calls[-1].finish_reason == "length":  # what was cut could not be read: no behaviour of the model's
            context.commit(output_of(log, outcomes, items, content=_text(log)))
            return
        raise
    else:
        items = result.new_items
        context.commit(output_of(log, outcomes, items, result.final_output, result.interruptions))
    finally:
        if context.output is None:
            context.partial = output_of(log, outcomes, items, content=None)


def _text(log: Log) -> str | None:
    answer = log.last.answer if log.last else None
    return answer.get("content") if answer else None


def model_of(llm: LLM) -> Model:
    """The model that an LLM is."""
    return OpenAIChatCompletionsModel(model=llm.model, openai_client=openai_client(llm.endpoint, llm.api_key))
