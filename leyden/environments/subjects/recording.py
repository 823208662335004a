"""What the model was asked and what it answered, taken where it happens: the messages of an attempt are exactly these."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leyden.environments.connections import on_this_loop
from leyden.errors import MissingExtra

try:
    from agents import Model, ModelProvider, MultiProvider, OpenAIChatCompletionsModel, RunHooks
    from agents.models.chatcmpl_converter import Converter
    from openai import AsyncOpenAI
except ModuleNotFoundError as error:
    raise MissingExtra("agents", "runners") from error

if TYPE_CHECKING:
    from agents import ModelResponse

Message = Mapping[str, Any]


@dataclass
class Exchange:
    """One call of the model, in the form of chat completions."""

    messages: list[Message]
    tools: list[Message]
    model: str | None
    answer: Message | None = None  # None: it failed
    finish_reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass
class Log:
    """The calls of one attempt. ``calls`` are those of the run itself; ``all`` has those of agents used as tools too."""

    calls: list[Exchange] = field(default_factory=list)
    all: list[Exchange] = field(default_factory=list)
    turn: bool = False  # the run itself waits for its model, and no tool of it works meanwhile
    started: set[str] = field(default_factory=set)  # ids of the calls whose tool began to work

    def begin(self, exchange: Exchange) -> Exchange:
        self.all.append(exchange)
        if self.turn:
            self.calls.append(exchange)
        return exchange

    @property
    def last(self) -> Exchange | None:
        """The last call that was answered."""
        return next((call for call in reversed(self.calls) if call.answer is not None), None)


class Turns(RunHooks[Any]):
    """Tells the run's own calls from those of agents that it uses as tools: these run without these hooks."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        self._log.turn = True

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        self._log.turn = False

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        if call_id := getattr(context, "tool_call_id", None):
            self._log.started.add(call_id)


def recorded(model: Model, log: Log, sampling: Mapping[str, Any] | None = None) -> Model:
    """The same model, whose calls are written down. Chat completions are taken as they go over the wire; ``sampling`` goes over it with
    them, above what the agent's own settings say, whatever its names."""
    if not isinstance(client := getattr(model, "_client", None), AsyncOpenAI):
        return _Recorder(model, log)
    fresh: Any = copy.copy(model)
    fresh._client = on_this_loop(client)
    if type(model) is not OpenAIChatCompletionsModel:
        return _Recorder(fresh, log)
    fresh._client = _Client(fresh._client, log, sampling or {})
    return fresh


class RecordedProvider(ModelProvider):
    """Models that an agent knows by name only."""

    def __init__(self, log: Log) -> None:
        self._provider: ModelProvider | None = None  # most agents bring their models
        self._log = log

    def get_model(self, model_name: str | None) -> Model:
        if self._provider is None:
            self._provider = MultiProvider()
        return recorded(self._provider.get_model(model_name), self._log)

    async def aclose(self) -> None:
        if self._provider is not None:
            await self._provider.aclose()


class _Client:
    """A client of OpenAI's whose chat completions are written down; the rest is the client's own."""

    def __init__(self, client: Any, log: Log, sampling: Mapping[str, Any]) -> None:
        self._inner = client
        self._log = log
        self._sampling = sampling
        self.chat = self.completions = self  # client.chat.completions.create

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def with_options(self, **options: Any) -> _Client:
        return _Client(self._inner.with_options(**options), self._log, self._sampling)

    async def create(self, **request: Any) -> Any:
        tools = request.get("tools")
        call = self._log.begin(Exchange(list(request["messages"]), list(tools) if isinstance(tools, list) else [], request.get("model")))
        if self._sampling:
            request["extra_body"] = {**(request.get("extra_body") or {}), **self._sampling}
        answer = await self._inner.chat.completions.create(**request)
        choices = getattr(answer, "choices", None)
        if choices:
            call.answer = said(choices[0].message.model_dump(exclude_unset=True))
            call.finish_reason = choices[0].finish_reason
            call.model = answer.model or call.model
            if answer.usage is not None:
                call.input_tokens, call.output_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens
        return answer


class _Recorder(Model):
    """Any other model, by what the SDK gives it and gets from it."""

    def __init__(self, model: Model, log: Log) -> None:
        self._inner = model
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    async def close(self) -> None:
        await self._inner.close()

    def get_retry_advice(self, request: Any) -> Any:
        return self._inner.get_retry_advice(request)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.stream_response(*args, **kwargs)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,
        model_settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        tracing: Any,
        **rest: Any,
    ) -> ModelResponse:
        system: list[Message] = [{"role": "system", "content": system_instructions}] if system_instructions else []
        offered = [_offered(tool) for tool in tools] + [dict(Converter.convert_handoff_tool(each)) for each in handoffs]
        name = getattr(self._inner, "model", None)
        call = self._log.begin(Exchange([*system, *as_messages(input)], offered, name if isinstance(name, str) else None))
        answer = await self._inner.get_response(
            system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **rest
        )  # fmt: skip
        messages = as_messages([item.model_dump(exclude_unset=True) for item in answer.output])
        call.answer = said(messages[-1] if messages else {"role": "assistant", "content": None})
        if any(getattr(item, "status", None) == "incomplete" for item in answer.output):
            call.finish_reason = "length"
        if answer.usage.requests:
            call.input_tokens, call.output_tokens = answer.usage.input_tokens, answer.usage.output_tokens
        return answer


def said(message: Message) -> Message:
    """An assistant's message with what it has, ``content`` always."""
    kept = {name: value for name, value in message.items() if value is not None and value != [] and name not in ("role", "content")}
    return {"role": "assistant", "content": message.get("content"), **kept}


def as_messages(items: Any) -> list[Message]:
    """Items of the SDK as messages of chat completions, copied."""
    return [copy.deepcopy(dict(message)) for message in Converter.items_to_messages(items)]


def _offered(tool: Any) -> Message:
    if hasattr(tool, "params_json_schema"):
        return copy.deepcopy(dict(Converter.tool_to_openai(tool)))
    return {"type": tool.name}  # the provider runs it; chat completions have no form for it
