"""One entry of the model list: which engine, under which name, with which checkpoint."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson

from leyden.errors import MissingExtra, UsageError
from leyden.types import ID_PATTERN

_ENTRY_KEYS = {"model_name", "litellm_params", "model_info"}
TIMEOUT = 1800.0  # seconds for a whole call
MAX_IN_FLIGHT = 512  # calls at once; vLLM batches at most 256 to 1024
_OPENAI_BASE = "https://api.openai.com/v1"
_FORM = 'each entry is {"model_name": ..., "litellm_params": {"model": "hosted_vllm/...", "api_base": "http://127.0.0.1:8000/v1"}}'


class Dialect(StrEnum):
    VLLM = "vllm"  # OpenAI's API plus ``return_token_ids``: vLLM and the embedded engine
    OPENAI = "openai"  # OpenAI itself, which refuses fields it does not know
    LITELLM = "litellm"  # everything that does not speak OpenAI


@dataclass(frozen=True)
class Deployment:
    """One served checkpoint: an entry of the model list, resolved."""

    id: str
    model_name: str  # what agents ask for
    upstream_model: str
    dialect: Dialect
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    checkpoint: str | None = None
    options: dict[str, Any] = field(default_factory=dict, repr=False)  # further litellm_params, for litellm only
    timeout: float = TIMEOUT  # litellm's names for these two: timeout, max_parallel_requests
    max_in_flight: int = MAX_IN_FLIGHT
    exact: bool = False  # prompts go on with the very ids that were sampled
    vocabulary: int | None = None  # how many tokens the model knows; None: the engine is asked

    @property
    def set_id(self) -> str:
        """Of all the entries with this name and checkpoint together: what attempts are pinned to where there are several."""
        return f"set-{_digest([self.model_name, self.checkpoint])}"

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> Deployment:
        """Read one entry in litellm's form. ``hosted_vllm/x``, ``openai/x``, and a bare ``x`` with an ``api_base`` are passed through.

        Raises ``UsageError`` for a bad entry, ``MissingExtra`` for one that needs litellm where it is not installed.
        """
        if unknown := set(entry) - _ENTRY_KEYS:
            raise UsageError(f"unknown key in a model list entry: {', '.join(sorted(unknown))}", _FORM)
        params = dict(entry.get("litellm_params") or {})
        info = entry.get("model_info") or {}
        name, model = entry.get("model_name"), params.pop("model", None)
        if not isinstance(name, str) or not name or not isinstance(model, str) or not model:
            raise UsageError("a model list entry lacks its model_name or litellm_params.model", _FORM)
        api_base, api_key = params.pop("api_base", None), _resolve_secret(params.pop("api_key", None))
        timeout = _positive(name, params, "timeout", TIMEOUT)
        max_in_flight = int(_positive(name, params, "max_parallel_requests", MAX_IN_FLIGHT))
        dialect, upstream_model, api_base = _route(model, api_base)
        if dialect is Dialect.LITELLM and importlib.util.find_spec("litellm") is None:
            raise MissingExtra("litellm", "litellm")
        if dialect is not Dialect.LITELLM and params:
            hint = "sampling belongs on the resource: as_resource(sampling_parameters=...)"
            raise UsageError(f"{name}: litellm_params.{min(params)} has no effect on a passed-through model", hint)
        deployment_id = info.get("id") or f"dep-{_digest([name, model, api_base, info.get('checkpoint')])}"
        if not re.match(ID_PATTERN, deployment_id):
            raise UsageError(f"{name}: model_info.id {deployment_id!r} is not an id", "use up to 64 letters, digits, _ and -")
        checkpoint = info.get("checkpoint")
        exact, vocabulary = info.get("exact") or False, info.get("vocab_size")
        if not isinstance(exact, bool):
            raise UsageError(f"{name}: model_info.exact is {exact!r}", "give true or false")
        if vocabulary is not None and (isinstance(vocabulary, bool) or not isinstance(vocabulary, int) or vocabulary < 1):
            raise UsageError(f"{name}: model_info.vocab_size is {vocabulary!r}", "give a whole number from 1, or leave it out")
        if exact and dialect is not Dialect.VLLM:
            raise UsageError(f"{name}: exact mode needs an engine that takes token ids", "serve the model with vLLM --enable-scale-out")
        return cls(
            deployment_id, name, upstream_model, dialect, api_base, api_key, checkpoint, params, timeout, max_in_flight, exact, vocabulary
        )  # fmt: skip


def _route(model: str, api_base: str | None) -> tuple[Dialect, str, str | None]:
    prefix, slash, rest = model.partition("/")
    if slash and prefix in ("hosted_vllm", "openai"):
        model = rest
        api_base = api_base or (_OPENAI_BASE if prefix == "openai" else None)
        if api_base is None:
            raise UsageError(f"hosted_vllm/{rest} has no api_base", _FORM)
    elif api_base is None or (slash and prefix not in ("", ".", "..")):  # a path is a bare name; any other prefix is a provider
        return Dialect.LITELLM, model, api_base
    url = urlsplit(api_base)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError("an api_base is not an http URL", _FORM)
    if url.username or url.password:  # it is named in errors and logs
        raise UsageError("an api_base holds a password", "put the secret in litellm_params.api_key")
    host = url.hostname
    dialect = Dialect.OPENAI if host == "openai.com" or host.endswith(".openai.com") else Dialect.VLLM
    return dialect, model, api_base.rstrip("/")


def _digest(identity: list[str | None]) -> str:
    return hashlib.sha256(orjson.dumps(identity)).hexdigest()[:16]


def _positive(name: str, params: dict[str, Any], what: str, default: float) -> float:
    value = params.pop(what, None)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < math.inf:
        raise UsageError(f"{name}: litellm_params.{what} is {value!r}", "give a number from 1")
    return value


def _resolve_secret(api_key: str | None) -> str | None:
    """litellm's ``os.environ/NAME`` form, or the key itself."""
    if api_key is None or not api_key.startswith("os.environ/"):
        return api_key
    name = api_key.removeprefix("os.environ/")
    if name not in os.environ:
        raise UsageError(f"the model list names {name}, which is not set", f"export {name}=...")
    return os.environ[name]
