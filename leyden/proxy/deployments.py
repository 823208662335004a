"""The model list: which deployment answers for a model name, which replaced ones pinned attempts still reach, and who is busy."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import orjson

from leyden.errors import MissingExtra, UsageError
from leyden.proxy.refusal import Refusal
from leyden.types import ID_PATTERN, LLM, Resources

_ENTRY_KEYS = {"model_name", "litellm_params", "model_info"}
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
        dialect, upstream_model, api_base = _route(model, api_base)
        if dialect is Dialect.LITELLM and importlib.util.find_spec("litellm") is None:
            raise MissingExtra("litellm", "litellm")
        if dialect is not Dialect.LITELLM and params:
            hint = "sampling belongs on the resource: as_resource(sampling_parameters=...)"
            raise UsageError(f"{name}: litellm_params.{min(params)} has no effect on a passed-through model", hint)
        identity = orjson.dumps([name, model, api_base, info.get("checkpoint")])
        deployment_id = info.get("id") or f"dep-{hashlib.sha256(identity).hexdigest()[:16]}"
        if not re.match(ID_PATTERN, deployment_id):
            raise UsageError(f"{name}: model_info.id {deployment_id!r} is not an id", "use up to 64 letters, digits, _ and -")
        return cls(deployment_id, name, upstream_model, dialect, api_base, api_key, info.get("checkpoint"), params)


class ModelTable:
    """Current entries by name, replaced ones by id, and how many calls are in flight on each. Belongs to one event loop."""

    def __init__(self) -> None:
        self._current: dict[str, Deployment] = {}
        self._retired: dict[str, Deployment] = {}
        self._in_flight: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}

    @property
    def current(self) -> list[Deployment]:
        return list(self._current.values())

    def replace(self, model_list: Sequence[dict[str, Any]]) -> None:
        """Make this the model list, all or nothing. What it leaves out stays reachable, for attempts pinned to it, until drained."""
        entries = [Deployment.from_entry(entry) for entry in model_list]
        known = {d.id: d for d in [*self._retired.values(), *self._current.values()]}
        for what, values in (("model_name", [e.model_name for e in entries]), ("model_info.id", [e.id for e in entries])):
            if twice := [value for value, count in Counter(values).items() if count > 1]:
                raise UsageError(f"{what} {twice[0]} is in the model list twice", "one entry for each model name")
        for entry in entries:
            if entry.id in known and known[entry.id].checkpoint != entry.checkpoint:
                hint = "give the new checkpoint its own model_info.id"
                raise UsageError(f"deployment {entry.id} already means {known[entry.id].checkpoint}", hint)
        listed = {entry.id for entry in entries}
        self._current = {entry.model_name: entry for entry in entries}
        self._retired = {id: deployment for id, deployment in known.items() if id not in listed}

    def pick(self, resources: Resources | None, model: str) -> tuple[Deployment, LLM | None]:
        """The deployment that answers ``model`` for an attempt that holds ``resources``, and the resource that pinned it.

        The attempt's LLM of that name decides; for a name nobody knows, its only LLM. Raises ``Refusal``: 404, or 409 ``checkpoint_gone``.
        """
        llms = [r for r in (resources.resources.values() if resources else ()) if isinstance(r, LLM) and r.proxied]
        pinned = next((llm for llm in llms if llm.model == model), None)
        if pinned is None and model not in self._current and len(llms) == 1:
            pinned = llms[0]
        if pinned is not None and pinned.deployment is not None:
            return self._by_id(pinned.deployment, pinned.checkpoint), pinned
        deployment = self._current.get(pinned.model if pinned else model)
        if deployment is None:
            names = ", ".join(sorted(self._current)) or "none"
            raise Refusal(404, "model_not_found", f"the model {model!r} does not exist; models: {names}", param="model")
        return deployment, pinned

    def _by_id(self, deployment_id: str, checkpoint: str | None) -> Deployment:
        for deployment in (*self._current.values(), *self._retired.values()):
            if deployment.id == deployment_id:
                return deployment
        message = f"this attempt is pinned to {checkpoint or deployment_id}, which is not served any more"
        raise Refusal(409, "checkpoint_gone", message, "end the attempt; a new one gets what is served now")

    @contextmanager
    def hold(self, deployment: Deployment) -> Iterator[None]:
        """Count a call as in flight on its deployment."""
        self._in_flight[deployment.id] += 1
        try:
            yield
        finally:
            self._in_flight[deployment.id] -= 1
            if not self._in_flight[deployment.id]:
                del self._in_flight[deployment.id]
                if idle := self._idle.pop(deployment.id, None):
                    idle.set()

    async def drain(self, deployment_id: str, timeout: float) -> bool:
        """Wait until no call is in flight on it, at most ``timeout`` seconds; False if some still are.

        A deployment that is no longer in the model list takes no new call from now on: attempts pinned to it get ``checkpoint_gone``.
        """
        self._retired.pop(deployment_id, None)
        if deployment_id not in self._in_flight:
            return True
        idle = self._idle.setdefault(deployment_id, asyncio.Event())
        try:
            await asyncio.wait_for(idle.wait(), timeout)
        except TimeoutError:
            return False
        return True


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


def _resolve_secret(api_key: str | None) -> str | None:
    """litellm's ``os.environ/NAME`` form, or the key itself."""
    if api_key is None or not api_key.startswith("os.environ/"):
        return api_key
    name = api_key.removeprefix("os.environ/")
    if name not in os.environ:
        raise UsageError(f"the model list names {name}, which is not set", f"export {name}=...")
    return os.environ[name]
