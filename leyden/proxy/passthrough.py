"""Engines that speak OpenAI: their answers over pooled connections, and their failures by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from leyden.http.connection import BrokenOff, Response
from leyden.http.connections import Connections, NotConnected
from leyden.proxy import sse
from leyden.proxy.asked import CHAT
from leyden.proxy.deployments import Deployment
from leyden.proxy.refusal import NotReached, Refusal, engine_gone

# Seconds.
FIRST_BYTE = 600.0  # an engine may need as long for a whole unstreamed answer; OpenAI's SDKs wait no longer either
IDLE = 300.0  # between two parts of a stream
PROBE = 2.0
FINISH = 5.0  # for what a server may still send after its last event


class PassThrough:
    """Sends a body to a deployment as it is. Every failure is a ``Refusal``; leaving early closes the connection: the engine stops.

    Make and close it in the event loop that uses it.
    """

    def __init__(self) -> None:
        self._connections = Connections()
        self._finishing: set[asyncio.Task[None]] = set()

    async def complete(self, deployment: Deployment, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
        with _named(deployment):
            async with asyncio.timeout(min(FIRST_BYTE, deployment.timeout)):
                response = await self._request(deployment, "POST", path, orjson.dumps(body))
                raw = await response.read()
        _check_status(deployment, response, raw)
        return _parse(deployment, raw)

    async def stream(self, deployment: Deployment, body: dict[str, Any], path: str = CHAT) -> AsyncGenerator[dict[str, Any], None]:
        until = asyncio.get_running_loop().time() + deployment.timeout
        with _named(deployment):
            async with asyncio.timeout(min(FIRST_BYTE, deployment.timeout)):
                response = await self._request(deployment, "POST", path, orjson.dumps(body))
                await response.begin()
            try:
                if response.status != 200:
                    async with asyncio.timeout(IDLE):
                        _check_status(deployment, response, await response.read())
                async for data in sse.decode(_parts(response, until)):
                    if data == b"[DONE]":
                        break
                    yield _parse(deployment, data)
                else:
                    return
                if not response.ended:  # its connection can be used again only after its end
                    self._finish(response)
            except BaseException:
                response.close()
                raise

    async def alive(self, deployment: Deployment) -> bool:
        """Whether it answers at all, and not as one that is starting or going down."""
        try:
            async with asyncio.timeout(PROBE):
                await self.get(deployment, "/models")
        except Refusal as refusal:
            return refusal.status < 500
        except TimeoutError:
            return False
        return True

    async def get(self, deployment: Deployment, path: str) -> dict[str, Any]:
        """What it says of itself."""
        with _named(deployment):
            response = await self._request(deployment, "GET", path)
            raw = await response.read()
        _check_status(deployment, response, raw)
        return _parse(deployment, raw)

    async def close(self) -> None:
        for task in self._finishing:
            task.cancel()
        self._connections.close()

    async def _request(self, deployment: Deployment, method: str, path: str, body: bytes = b"") -> Response:
        headers = {"content-type": "application/json", "authorization": f"Bearer {deployment.api_key or 'EMPTY'}"}
        try:
            return await self._connections.request(method, f"{deployment.api_base}{path}", headers, body)
        except ValueError as error:
            message = f"{deployment.model_name} at {deployment.api_base} cannot be asked: {error}"
            raise Refusal(502, "upstream_broken", message, "check its api_base and api_key") from error

    def _finish(self, response: Response) -> None:
        async def read_to_the_end() -> None:
            try:
                async with asyncio.timeout(FINISH):
                    await response.read()
            except (TimeoutError, BrokenOff):
                response.close()

        task = asyncio.create_task(read_to_the_end())
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)


async def _parts(response: Response, until: float) -> AsyncIterator[bytes]:
    """What has come, as it comes. ``until``: the loop's time at which patience ends altogether."""
    now = asyncio.get_running_loop().time
    patience = FIRST_BYTE
    while True:
        async with asyncio.timeout_at(min(now() + patience, until)):
            part = await response.read_some()
        if not part:
            return
        patience = IDLE
        yield part


@contextmanager
def _named(deployment: Deployment) -> Iterator[None]:
    where = f"{deployment.model_name} at {deployment.api_base}"
    try:
        yield
    except NotConnected as error:
        raise NotReached(f"cannot reach {where}: {error}") from error
    except TimeoutError as error:
        raise Refusal(504, "upstream_timeout", f"{where} did not answer in time") from error
    except BrokenOff as error:  # what a killed engine leaves of a call
        raise engine_gone(f"{where} broke off: {error}") from error


def _check_status(deployment: Deployment, response: Response, raw: bytes) -> None:
    status = response.status
    if status == 200:
        return
    if status < 400:  # a redirect handed on would send the attempt's key elsewhere
        raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {deployment.api_base} answered {status}", "check its api_base")
    raise Refusal(
        status,
        "upstream_error",
        f"upstream answered {status}: {raw[:2000].decode(errors='replace')}",
        body=raw,
        retry_after=response.headers.get("retry-after") or ("1" if status == 429 else None),
    )


def _parse(deployment: Deployment, raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _with_nan(raw)
    if not isinstance(value, dict):
        raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {deployment.api_base} did not answer with a JSON object")
    if failure := value.get("error"):
        message = failure.get("message") if isinstance(failure, dict) else failure
        raise Refusal(502, "upstream_error", f"upstream failed: {message}")
    return value


def _with_nan(raw: bytes) -> Any:
    """JSON, or what Python makes of it: a log-probability that is NaN spoils itself, not the answer. None if it is not even that."""
    try:
        return json.loads(raw)
    except ValueError:
        return None
