"""Reading an agent's request field by field: what a form cannot say to an engine is refused by its name, never dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from leyden.proxy.refusal import Refusal

# Parameters of a chat completion, OpenAI's and vLLM's, that may be set in every form: they mean the same in all of them.
SAMPLING = frozenset({
    "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias",
    "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens", "bad_words", "structured_outputs", "chat_template_kwargs",
    "return_token_ids", "priority",
})  # fmt: skip


MARGIN = 16  # levels that may be added to a request on its way; all that writes JSON stops at 254


def parse_object(raw: bytes) -> dict[str, Any]:
    """Raises ``Refusal`` (400) for what is not a JSON object."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"the request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, "invalid_json", "the request body is not a JSON object")
    deeper: Any = body
    for _ in range(MARGIN):
        deeper = [deeper]
    try:
        orjson.dumps(deeper)
    except TypeError as error:
        raise Refusal(400, "invalid_json", "the request body is nested too deep") from error
    return body


def model_of(body: Mapping[str, Any]) -> str:
    """Raises ``Refusal`` (400)."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise Refusal(400, "missing_model", "the request names no model", param="model")
    return model


def flag(body: Mapping[str, Any], name: str) -> bool:
    """An optional boolean; absent and null are False. Raises ``Refusal`` (400)."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, "is not true or false")
    return value is True


def number_of_choices(body: Mapping[str, Any]) -> int:
    """Raises ``Refusal`` (400)."""
    n = body.get("n")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise Refusal(400, "invalid_n", "n is not a whole number from 1", param="n")
    return n or 1


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the stream ends with a chunk of usage, as ``stream_options`` says. Raises ``Refusal`` (400)."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refusal(400, "invalid_stream_options", "stream_options is not an object", param="stream_options")
    return options.get("include_usage") is True


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    """A list of objects; None is an empty one. Raises ``Refusal`` (400)."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(where, "is not a list of objects")
    return value


def object_of(value: Any, where: str) -> dict[str, Any]:
    """None is an empty one. Raises ``Refusal`` (400)."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(where, "is not an object")
    return value


def text_of(value: Any, where: str) -> str:
    """Raises ``Refusal`` (400)."""
    if not isinstance(value, str):
        raise invalid(where, "is not a text")
    return value


def only(value: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    """Raises ``Refusal`` (400) for a field, set to something, that is not among ``known``."""
    unknown = sorted(name for name, given in value.items() if given is not None and name not in known)
    if unknown:
        raise unsupported(f"{where}.{unknown[0]}" if where else unknown[0])


def flat(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Content as chat templates take it best: one text by itself, anything else in parts."""
    if all(part["type"] == "text" for part in parts) and len(parts) <= 1:
        return parts[0]["text"] if parts else ""
    return parts


def invalid(where: str, what: str) -> Refusal:
    return Refusal(400, "invalid_request", f"{where} {what}", param=where)


def unsupported(where: str, why: str = "the proxy cannot tell it to an engine", hint: str | None = None) -> Refusal:
    return Refusal(400, "unsupported_parameter", f"{where} is not supported: {why}", hint, param=where)
