"""Token ids of a traced call, where an attribute carries them.

Known carriers: our own spans and those of Agent-lightning's instrumentation (attributes of their own), OpenInference (the whole answer as
JSON, with what vLLM returns for ``return_token_ids``), litellm's proxy (``llm.<provider>.…``, as Python's literals).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leyden.algorithm.traces.attributes import as_dict, as_number, dicts, first, parsed

_PROVIDER = re.compile(r"llm\.[\w-]+\.(prompt_token_ids|choices)")


@dataclass(frozen=True)
class Ids:
    """``prompt`` [P]; of each choice its ``response`` [R] and, as far as they were told, ``logprobs`` [R] and ``finish`` reason."""

    prompt: list[int]
    responses: list[list[int]]
    logprobs: list[list[float] | None]
    finish: list[Any]


def read_ids(attributes: Mapping[str, Any]) -> Ids | None:
    """None where the prompt's or an answer's are missing: what is not there is never made up."""
    answer = parsed(attributes.get("output.value"))
    raw = {match[1]: parsed(value) for name, value in attributes.items() if (match := _PROVIDER.fullmatch(name))}
    return _own(attributes) or _of_answer(answer) or _of_answer(raw)


def is_of_a_call(attributes: Mapping[str, Any]) -> bool:
    """Whether it has attributes that no span but a model's call has, ids or not."""
    own = ("leyden.generation_id", "leyden.prompt_token_ids", "prompt_token_ids")
    return any(name in own or _PROVIDER.fullmatch(name) for name in attributes)


def _own(attributes: Mapping[str, Any]) -> Ids | None:
    prompt = _integers(first(attributes, "leyden.prompt_token_ids", "prompt_token_ids"))
    response = parsed(first(attributes, "leyden.response_token_ids", "response_token_ids"))
    if isinstance(response, list) and response and isinstance(response[0], list):
        responses = [_integers(one) for one in response]  # one list a choice
    else:
        responses = [_integers(response)]
    logprobs = _numbers(first(attributes, "leyden.logprobs", "logprobs.content"))
    return _complete(prompt, responses, [logprobs if len(responses) == 1 else None] * len(responses), [None] * len(responses))


def _of_answer(answer: Any) -> Ids | None:
    """A chat completion as vLLM gives it. litellm moves what it does not know into ``provider_specific_fields``."""
    answer = as_dict(answer)
    choices = dicts(answer.get("choices"))
    found = [_integers(first({**as_dict(choice.get("provider_specific_fields")), **choice}, "token_ids")) for choice in choices]
    logprobs = [_numbers(as_dict(choice.get("logprobs")).get("content")) for choice in choices]
    return _complete(_integers(answer.get("prompt_token_ids")), found, logprobs, [choice.get("finish_reason") for choice in choices])


def _complete(
    prompt: list[int] | None, responses: list[list[int] | None], logprobs: list[list[float] | None], finish: list[Any]
) -> Ids | None:
    whole = [response for response in responses if response is not None]
    return Ids(prompt, whole, logprobs, finish) if prompt and whole and len(whole) == len(responses) else None


def _integers(value: Any) -> list[int] | None:
    value = parsed(value)
    fit = isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    return value if fit else None


def _numbers(value: Any) -> list[float] | None:
    """Of numbers, or of OpenAI's ``{"token", "logprob", …}``; NaN for each that is none."""
    value = parsed(value)
    if not isinstance(value, list) or not value:
        return None
    numbers = [item.get("logprob") if isinstance(item, dict) else item for item in value]
    return [math.nan if (known := as_number(number)) is None else known for number in numbers]
