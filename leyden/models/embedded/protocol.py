"""The chat completions request as the embedded engine takes it: what it cannot honour it refuses by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leyden.models.embedded.sampling import Sampling

# Fields that change nothing about the samples here, so they may be ignored in good faith.
HARMLESS = {
    "user", "metadata", "store", "parallel_tool_calls", "service_tier", "prompt_cache_key", "safety_identifier", "verbosity",
    "prompt_cache_retention",
}  # fmt: skip
# Fields that shape the samples, or the text that is made of them: only their neutral value can be taken.
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "top_k": -1, "min_p": 0, "ignore_eos": False,
    "min_tokens": 0, "response_format": {"type": "text"}, "reasoning_effort": None, "best_of": 1, "use_beam_search": False,
    "skip_special_tokens": True, "spaces_between_special_tokens": True, "include_stop_str_in_output": False, "add_generation_prompt": True,
}  # fmt: skip


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """OpenAI's ``POST /v1/chat/completions`` with vLLM's ``return_token_ids``."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    n: int = Field(1, ge=1, le=64)
    temperature: float | None = Field(None, ge=0, le=10)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool = False

    @model_validator(mode="after")
    def refuse_what_would_be_ignored(self) -> ChatRequest:
        for name, value in (self.model_extra or {}).items():
            if name in HARMLESS or value is None:
                continue
            if name not in NEUTRAL:
                raise ValueError(f"the embedded engine does not know the parameter {name!r}")
            if value != NEUTRAL[name]:
                raise ValueError(f"the embedded engine cannot honour {name}={value!r}; leave it out, or serve the model with vLLM")
        for message in self.messages:
            if not isinstance(message.get("role"), str):
                raise ValueError("each message needs a role")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            seed=self.seed,
            stop=self.stops,
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else 0,
        )
