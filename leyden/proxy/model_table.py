"""The model list: which engines answer for a name, and which of those it no longer names are still there for attempts pinned to them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from leyden.errors import UsageError
from leyden.proxy.deployments import Deployment
from leyden.proxy.refusal import Refusal
from leyden.proxy.replicas import ReplicaSet
from leyden.types import LLM, Resources

Key = tuple[str, str | None, str | None]
"""Name and checkpoint, which any number of engines may serve together; of an entry without a checkpoint, name and id."""


class ModelTable:
    """Current sets by name, and replaced ones by what is pinned to them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._sets: dict[Key, ReplicaSet] = {}
        self._current: dict[str, Key] = {}
        self._known: dict[str, Key] = {}  # by every id that an attempt may be pinned to

    @property
    def current(self) -> list[ReplicaSet]:
        return [self._sets[key] for key in self._current.values()]

    def replace(self, model_list: Sequence[dict[str, Any]]) -> None:
        """Make this the model list, all or nothing. What it leaves out stays reachable, for attempts pinned to it, until drained; an engine
        that it leaves out while others serve the same checkpoint under the same name takes no new call."""
        entries = [Deployment.from_entry(entry) for entry in model_list]
        if twice := [id for id, count in Counter(entry.id for entry in entries).items() if count > 1]:
            raise UsageError(f"model_info.id {twice[0]} is in the model list twice", "each engine has an entry of its own")
        groups: dict[Key, list[Deployment]] = defaultdict(list)
        for entry in entries:
            if (key := self._known.get(entry.id)) is not None and key[1] != entry.checkpoint:
                hint = "give the new checkpoint its own model_info.id"
                raise UsageError(f"deployment {entry.id} already means {key[1]}", hint)
            groups[_key(entry)].append(entry)
        if twice := [name for name, count in Counter(name for name, *_ in groups).items() if count > 1]:
            hint = "entries of one name are replicas: each has the same model_info.checkpoint"
            raise UsageError(f"model_name {twice[0]} is in the model list twice", hint)
        for (name, *_), group in groups.items():
            if len({entry.dialect for entry in group}) > 1:
                raise UsageError(f"the replicas of {name} do not speak the same API", "give the others a model_name of their own")
        for key, group in groups.items():
            if key in self._sets:
                self._sets[key].change(group)
            else:
                self._sets[key] = ReplicaSet(group)
            self._known |= {entry.id: key for entry in group} | {group[0].set_id: key}
        self._current = {key[0]: key for key in groups}
        self._sets = {key: replicas for key, replicas in self._sets.items() if key in self._known.values()}

    def pick(self, resources: Resources | None, model: str) -> tuple[ReplicaSet, LLM | None]:
        """What answers ``model`` for an attempt that holds ``resources``, and the resource that pinned it.

        The attempt's LLM of that name decides; for a name nobody knows, its only LLM. Raises ``Refusal``: 404, or 409 ``checkpoint_gone``.
        """
        llms = [r for r in (resources.resources.values() if resources else ()) if isinstance(r, LLM) and r.proxied]
        pinned = next((llm for llm in llms if llm.model == model), None)
        if pinned is None and model not in self._current and len(llms) == 1:
            pinned = llms[0]
        if pinned is not None and pinned.deployment is not None:
            return self._by_id(pinned.deployment, pinned.checkpoint), pinned
        key = self._current.get(pinned.model if pinned else model)
        if key is None:
            names = ", ".join(sorted(self._current)) or "none"
            raise Refusal(404, "model_not_found", f"the model {model!r} does not exist; models: {names}", param="model")
        return self._sets[key], pinned

    def _by_id(self, deployment_id: str, checkpoint: str | None) -> ReplicaSet:
        key = self._known.get(deployment_id)
        if key is None or self._sets[key].closed:
            message = f"this attempt is pinned to {checkpoint or deployment_id}, which is not served any more"
            raise Refusal(409, "checkpoint_gone", message, "end the attempt; a new one gets what is served now")
        return self._sets[key]

    async def drain(self, deployment_id: str, timeout: float) -> bool:
        """Wait until no call is in flight on it, at most ``timeout`` seconds; False if some still are.

        A deployment that is no longer in the model list takes no new call from now on: attempts pinned to it get ``checkpoint_gone``.
        """
        key = self._known.get(deployment_id)
        if key is None:
            return True
        replicas = self._sets[key]
        replicas.closed = key not in self._current.values()
        try:
            async with asyncio.timeout(timeout):
                await replicas.drained(deployment_id)
        except TimeoutError:
            return False
        if replicas.closed and self._sets.get(key) is replicas and not replicas.busy:
            replicas.close()
            del self._sets[key]
            self._known = {id: of for id, of in self._known.items() if of != key}
        return True

    def close(self) -> None:
        for replicas in self._sets.values():
            replicas.close()


def _key(entry: Deployment) -> Key:
    return (entry.model_name, entry.checkpoint, None) if entry.checkpoint is not None else (entry.model_name, None, entry.id)
