"""``LLMProxy``: starts the door, says where it is, and changes what is behind it without closing it."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import nullcontext
from typing import Any

import uvicorn

from leyden.errors import UsageError
from leyden.ports import reserve_port
from leyden.proxy.app import build_app
from leyden.proxy.bindings import Bindings
from leyden.proxy.calls import Calls
from leyden.proxy.model_table import ModelTable
from leyden.server.interface import Store
from leyden.types import LLM

# A call makes hundreds of small objects and drops them all: with Python's 700 the collector took a quarter of the time (measured). It holds
# for the process, while the proxy serves.
_GC_THRESHOLD = 10_000
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Server(uvicorn.Server):
    """A server in somebody else's event loop: Ctrl+C is theirs to handle."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


class LLMProxy:
    """An OpenAI-compatible endpoint (chat completions, models) that records every call under the attempt whose key it carries.

    It lives in the event loop that calls ``start``; all methods belong to that loop. ``counters`` says what happened how often:
    ``calls`` recorded, ``retries_joined``, ``not_recorded``, refusals by code, and calls by what their audit found
    (``leyden.audit``: each ``Finding``, and ``realigned`` and ``forked``).
    """

    def __init__(self, store: Store | None = None, *, port: int = 0, host: str = "127.0.0.1") -> None:
        """``port`` 0: any free one. Raises ``UsageError`` for a host that is not loopback."""
        if host not in _LOOPBACK:
            raise UsageError(f"the proxy does not listen on {host}", "use 127.0.0.1, and a tunnel for other machines")
        self.store = store
        self.base_url = ""  # http://127.0.0.1:PORT/v1 after start
        self.counters: Counter[str] = Counter()
        self._host, self._port = host, port
        self._table = ModelTable()
        self._calls: Calls | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._collected_before = gc.get_threshold()

    @property
    def port(self) -> int:
        """As it was asked for; 0: any free one."""
        return self._port

    @property
    def models(self) -> list[str]:
        """The names in its model list."""
        return [replicas.model_name for replicas in self._table.current]

    async def start(self) -> None:
        """Serve. Raises ``UsageError`` if the port is taken or no store was given."""
        if self.store is None:
            raise UsageError("the proxy has no store to record in", "pass one: LLMProxy(store)")
        if self._serving is not None:
            raise UsageError("the proxy has already been started", "stop it first")
        socket = reserve_port(self._host, self._port)
        self._collected_before = gc.get_threshold()
        young, *older = self._collected_before
        if 0 < young < _GC_THRESHOLD:
            gc.set_threshold(_GC_THRESHOLD, *older)
        self._calls = Calls(self.store, self._table, self.counters)
        app = build_app(Bindings(self.store), self._calls, self._table)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,  # attempt URLs hold keys
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,  # longer than clients keep theirs, else one may send just as we close
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[socket]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.005)
        if self._serving.done():
            self._serving.result()
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.base_url = f"http://{shown}:{socket.getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Take no new call, break off the ones in flight (each is recorded), and close."""
        if self._server is None or self._calls is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._calls.stop()
        await self._serving
        self._table.close()
        if gc.get_threshold()[0] == _GC_THRESHOLD:  # else somebody else has set it meanwhile
            gc.set_threshold(*self._collected_before)
        self._server = self._calls = self._serving = None
        self.base_url = ""

    def update_model_list(self, model_list: list[dict[str, Any]]) -> None:
        """Replace the model list, in litellm's form, without a restart; all or nothing.

        ``{"model_name": "policy", "litellm_params": {"model": "hosted_vllm/x", "api_base": ..., "api_key": ...},
        "model_info": {"id": deployment, "checkpoint": "version_0"}}``. Calls in flight finish where they are, and attempts pinned to a
        deployment that is no longer listed still reach it, until it is drained. Raises ``UsageError``, ``MissingExtra``.
        """
        self._table.replace(model_list)

    def as_resource(self, model_name: str | None = None, sampling_parameters: dict[str, Any] | None = None) -> LLM:
        """The entry of that name (or the only one) as a resource that pins attempts to it. Raises ``UsageError``."""
        if not self.base_url:
            raise UsageError("the proxy has not been started", "await proxy.start() first")
        current = {replicas.model_name: replicas for replicas in self._table.current}
        if model_name is None and len(current) == 1:
            model_name = next(iter(current))
        if model_name not in current:
            what = f"the proxy has no model {model_name!r}" if model_name else "the proxy does not have exactly one model"
            raise UsageError(what, f"its models: {', '.join(sorted(current)) or 'none; call update_model_list first'}")
        replicas = current[model_name]
        return LLM(
            endpoint=self.base_url,
            model=replicas.model_name,
            api_key=None,
            sampling_parameters=sampling_parameters or {},
            proxied=True,
            deployment=replicas.id,
            checkpoint=replicas.checkpoint,
        )

    async def drain(self, deployment: str, timeout: float) -> bool:
        """Wait, at most ``timeout`` seconds, until no call is in flight on a deployment; False if some still are.

        One that is no longer in the model list takes no new call from now on: attempts pinned to it get 409 ``checkpoint_gone``.
        """
        return await self._table.drain(deployment, timeout)
