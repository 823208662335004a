"""The recipe's ``LLMProxy``, in front of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leyden.agentlightning.store import LightningStore
from leyden.errors import UsageError
from leyden.proxy import LLMProxy as OurProxy
from leyden.types import LLM


class LLMProxy:
    """A proxy that records every call with its token ids. ``inner`` is ours, which never needs a restart."""

    def __init__(
        self,
        port: int | None = None,
        model_list: Sequence[dict[str, Any]] | None = None,
        store: LightningStore | None = None,
        host: str | None = None,
        **options: Any,
    ) -> None:
        if options:
            name = next(iter(options))
            raise UsageError(
                f"LLMProxy has no option {name!r}: no litellm server is behind it", "leave it out; docs/proxy.md says what it does"
            )
        self.store = store
        self.inner = OurProxy(port=port or 0, host=host or "127.0.0.1")
        self.inner.update_model_list(list(model_list or ()))

    @classmethod
    def around(cls, inner: OurProxy, store: LightningStore) -> LLMProxy:
        """The recipe's view of a proxy of ours."""
        proxy = cls.__new__(cls)
        proxy.store, proxy.inner = store, inner
        return proxy

    def set_store(self, store: LightningStore) -> None:
        """Where it will record. Before it is started."""
        self.store = store

    def is_running(self) -> bool:
        return bool(self.inner.base_url)

    async def start(self) -> None:
        """Serve, in this event loop. Raises ``UsageError`` without a store, or for a port that is taken."""
        if self.inner.store is None and self.store is not None:
            self.inner.store = self.store.inner
        await self.inner.start()

    async def restart(self, model_list: Sequence[dict[str, Any]] | None = None) -> None:
        """Start it if it is not running. A running one goes on: a new model list needs no restart, and cuts no call off."""
        if model_list is not None:
            self.update_model_list(model_list)
        if not self.is_running():
            await self.start()

    async def stop(self) -> None:
        await self.inner.stop()

    def update_model_list(self, model_list: Sequence[dict[str, Any]]) -> None:
        """Replace the model list, in litellm's form, at once."""
        self.inner.update_model_list(list(model_list))

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: dict[str, Any] | None = None,
    ) -> LLM:
        """The model of that name (or the only one) for agents. Whose call it is, its key says: ids of an attempt are not needed."""
        if rollout_id is not None or attempt_id is not None:
            raise UsageError(
                "as_resource does not bind an attempt", "every attempt gets its own URL and key at its claim; leave the ids out"
            )
        return self.inner.as_resource(model, sampling_parameters)
