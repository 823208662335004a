"""Engines that speak OpenAI: their answers over pooled connections, and their failures by name."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson

from leyden.proxy import sse
from leyden.proxy.deployments import Deployment
from leyden.proxy.refusal import Refusal, engine_gone

# Seconds. A read may take as long as an engine needs for a whole unstreamed answer; waiting for a connection is not limited by itself.
_TIMEOUT = httpx.Timeout(connect=5.0, read=600.0, write=60.0, pool=None)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
_POOLS = 16  # httpcore compares all connections of a pool with each other at each request: with 200 in one, 8 ms a call


class PassThrough:
    """Sends a body to a deployment as it is. Every failure is a ``Refusal``; leaving early closes the connection: the engine stops."""

    def __init__(self) -> None:
        tls = ssl.create_default_context()
        # trust_env would send calls for a local engine through HTTP_PROXY, and .netrc passwords to it.
        self._clients = [httpx.AsyncClient(timeout=_TIMEOUT, limits=_LIMITS, trust_env=False, verify=tls) for _ in range(_POOLS)]
        self._next = itertools.cycle(self._clients)

    async def complete(self, deployment: Deployment, body: dict[str, Any]) -> dict[str, Any]:
        with _named(deployment):
            response = await self._send(deployment, body, stream=False)
        _check_status(deployment, response)
        return _parse(deployment, response.content)

    async def stream(self, deployment: Deployment, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        with _named(deployment):
            response = await self._send(deployment, body, stream=True)
            try:
                if response.status_code != 200:
                    await response.aread()
                    _check_status(deployment, response)
                async for data in sse.decode(response.aiter_bytes()):
                    if data == b"[DONE]":
                        return
                    yield _parse(deployment, data)
            finally:
                await response.aclose()

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def _send(self, deployment: Deployment, body: dict[str, Any], stream: bool) -> httpx.Response:
        client = next(self._next)
        headers = {"content-type": "application/json", "authorization": f"Bearer {deployment.api_key or 'EMPTY'}"}
        request = client.build_request("POST", f"{deployment.api_base}/chat/completions", content=orjson.dumps(body), headers=headers)
        return await client.send(request, stream=stream)


@contextmanager
def _named(deployment: Deployment) -> Iterator[None]:
    where = f"{deployment.model_name} at {deployment.api_base}"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise engine_gone(f"cannot reach {where}: {error or type(error).__name__}") from error
    except (httpx.NetworkError, httpx.RemoteProtocolError) as error:  # what a killed engine leaves of a call
        raise engine_gone(f"{where} broke off: {error or type(error).__name__}") from error
    except httpx.TimeoutException as error:
        raise Refusal(504, "upstream_timeout", f"{where} did not answer in time") from error
    except httpx.HTTPError as error:
        raise Refusal(502, "upstream_broken", f"the call to {where} failed: {error or type(error).__name__}") from error


def _check_status(deployment: Deployment, response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    if status < 400:  # a redirect handed on would send the attempt's key elsewhere
        raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {deployment.api_base} answered {status}", "check its api_base")
    raise Refusal(
        status,
        "upstream_error",
        f"upstream answered {status}: {response.text[:2000]}",
        body=response.content,
        content_type=response.headers.get("content-type", "application/json"),
        retry_after=response.headers.get("retry-after"),
    )


def _parse(deployment: Deployment, data: bytes) -> dict[str, Any]:
    """One response or chunk. Raises ``Refusal`` for an error event, and for what is no JSON object."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {deployment.api_base} did not answer in JSON") from error
    if not isinstance(value, dict):
        raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {deployment.api_base} did not answer with a JSON object")
    if failure := value.get("error"):
        message = failure.get("message") if isinstance(failure, dict) else failure
        raise Refusal(502, "upstream_error", f"upstream failed: {message}")
    return value
