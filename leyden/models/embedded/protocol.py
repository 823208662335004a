"""Requests as the embedded engine takes them: what it cannot honour it refuses by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leyden.models.embedded.grammar import answer_grammar
from leyden.models.embedded.sampling import Sampling

# Fields that change nothing about the samples here, so they may be ignored in good faith.
HARMLESS = {
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity", "prompt_cache_retention",
}  # fmt: skip
# Fields that shape the samples, or the text that is made of them: only their neutral value can be taken.
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "top_k": -1, "min_p": 0, "ignore_eos": False,
    "min_tokens": 0, "reasoning_effort": None, "best_of": 1, "use_beam_search": False, "skip_special_tokens": True, "echo": False,
    "spaces_between_special_tokens": True, "include_stop_str_in_output": False, "add_generation_prompt": True, "add_special_tokens": True,
}  # fmt: skip
_RENDERING = {"messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict", "chat_template"}


class StreamOptions(BaseModel):
    include_usage: bool = False


class SamplingRequest(BaseModel):
    """What chat completions and completions have in common."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: int = Field(1, ge=1, le=64)
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def take_null_for_absent(cls, body: Any) -> Any:
        """As OpenAI's API does."""
        return {name: value for name, value in body.items() if value is not None} if isinstance(body, dict) else body

    @model_validator(mode="after")
    def refuse_what_would_be_ignored(self) -> SamplingRequest:
        for name, value in (self.model_extra or {}).items():
            if name in HARMLESS:
                continue
            if name not in NEUTRAL:
                raise ValueError(f"the embedded engine does not know the parameter {name!r}")
            if value != NEUTRAL[name]:
                raise ValueError(f"the embedded engine cannot honour {name}={value!r}; leave it out, or serve the model with vLLM")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def _sampling(self, max_tokens: int | None, top_logprobs: int) -> Sampling:
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_tokens=max_tokens,
            seed=self.seed,
            stop=self.stops,
            top_logprobs=top_logprobs,
        )


class TextRequest(SamplingRequest):
    """OpenAI's ``POST /v1/completions`` with vLLM's ``return_token_ids``. ``prompt``: one, a text or token ids [P]."""

    prompt: str | list[int]
    logprobs: int | None = Field(None, ge=0, le=20)

    def sampling(self) -> Sampling:
        return self._sampling(self.max_tokens or 16, self.logprobs or 0)  # 16: the API's own default


class NamedFunction(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ResponseFormat(BaseModel):
    """``json_schema``: ``{"name", "schema", "strict", "description"}``, of which the schema counts."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None

    @property
    def form(self) -> dict[str, Any] | None:
        if self.type == "text":
            return None
        return ((self.json_schema or {}).get("schema") if self.type == "json_schema" else None) or {"type": "object"}


class ChatRequest(SamplingRequest):
    """OpenAI's ``POST /v1/chat/completions`` with vLLM's ``return_token_ids`` and ``chat_template_kwargs``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_messages_and_tools(self) -> ChatRequest:
        for number, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise ValueError("each message needs a role")
            for part in message["content"] if isinstance(message.get("content"), list) else ():
                if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                    kind = part.get("type") if isinstance(part, dict) else "something"
                    raise ValueError(f"messages.{number}.content: the embedded engine reads text, not {kind}")
        if reserved := _RENDERING & set(self.chat_template_kwargs or ()):
            raise ValueError(f"chat_template_kwargs.{min(reserved)} is the engine's own")
        for tool in self.tools or ():
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError("each of tools needs a function with a name")
            if not isinstance(function.get("parameters") or {}, dict):
                raise ValueError(f"tools: the parameters of {function['name']} are not a schema")
        if self.must_call and not self.called:
            raise ValueError("tool_choice names a tool that is not among tools")
        return self

    @property
    def with_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def called(self) -> list[dict[str, Any]]:
        """The tools that may be called."""
        if not self.with_tools:
            return []
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.tools or () if tool["function"]["name"] == self.tool_choice.function.name]
        return self.tools or []

    @property
    def grammar(self) -> str | None:
        """What the answer must look like, if it must look like something."""
        form = self.response_format.form if self.response_format else None
        if form is None and not self.must_call:
            return None
        return answer_grammar(form, self.called, must_call=self.must_call, one_call=self.parallel_tool_calls is False)

    def sampling(self) -> Sampling:
        return self._sampling(self.max_completion_tokens or self.max_tokens, (self.top_logprobs or 0) if self.logprobs else 0)
