"""The embedded engine over HTTP: chat completions and completions as OpenAI and vLLM speak them.

Run as a child: ``python -m leyden.models.embedded.server MODEL_DIR --port 0 --ready-file F``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError

from leyden.errors import LeydenError, UsageError
from leyden.models.embedded.completion import ChatCompletion, Completion, TextCompletion
from leyden.models.embedded.engine import TransformersEngine
from leyden.models.embedded.protocol import ChatRequest, SamplingRequest, TextRequest
from leyden.models.embedded.tokens import add_token_routes
from leyden.ports import reserve_port
from leyden.process import leave_after, wait_for_release, watch_parent

MAX_BODY = 16 * 1024 * 1024  # bytes

R = TypeVar("R", bound=SamplingRequest)


def create_app(engine: TransformersEngine, model_name: str, nonce: str = "") -> FastAPI:
    """``nonce`` comes back from /health, so that whoever started this server can tell it from a stranger's on the same port."""
    app = FastAPI(title="Leyden embedded engine", docs_url=None, redoc_url=None)

    @app.get("/health")
    async def health() -> Response:
        return _json({"status": "ok", "name": "leyden-engine", "model": model_name, "nonce": nonce, "counters": engine.scheduler.counters})

    @app.get("/v1/models")
    async def models() -> Response:
        entry = {"id": model_name, "object": "model", "created": 0, "owned_by": "leyden", "max_model_len": engine.max_model_len}
        entry["vocab_size"] = engine.vocab_size
        return _json({"object": "list", "data": [entry]})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        async def begin(asked: ChatRequest) -> ChatCompletion:
            grammar = asked.grammar
            compiled = await asyncio.to_thread(engine.compile, grammar) if grammar else None
            return ChatCompletion(engine, asked, compiled)

        return await _complete(request, ChatRequest, begin)

    @app.post("/v1/completions")
    async def text(request: Request) -> Response:
        async def begin(asked: TextRequest) -> TextCompletion:
            return TextCompletion(engine, asked)

        return await _complete(request, TextRequest, begin)

    async def _complete(request: Request, form: type[R], begin: Callable[[R], Awaitable[Completion[Any]]]) -> Response:
        try:
            asked = form.model_validate(orjson.loads(await _read(request)))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            return _error(400, f"{where}: {first['msg']}" if where else first["msg"])
        except orjson.JSONDecodeError as error:
            return _error(400, f"the body is not JSON: {error}")
        except OverflowError:
            return _error(413, f"the body is larger than {MAX_BODY} bytes")
        if asked.model != model_name:
            return _error(404, f"no model {asked.model!r} here; this engine serves {model_name!r}", "model_not_found")
        try:
            completion = await begin(asked)
        except ValueError as error:
            return _error(400, str(error))
        return await respond(request, completion, asked.stream)

    async def respond(request: Request, work: Any, stream: bool) -> Response:
        return StreamingResponse(_events(work), media_type="text/event-stream") if stream else await _answer(request, work)

    add_token_routes(app, engine, model_name, _read, _error, respond)
    return app


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise OverflowError
    return bytes(body)


async def _answer(request: Request, completion: Completion[Any]) -> Response:
    """Wait for the answer and for the client's disconnect: an answer that nobody reads is not decoded to its end."""
    work = asyncio.ensure_future(completion.answer())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return _error(499, "the client went away")
        return _json(work.result())
    except Exception as error:
        return _error(500, f"decoding failed: {error}", "engine_error")
    finally:
        completion.samples.close()
        work.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(completion: Completion[Any]) -> AsyncIterator[bytes]:
    try:
        async for chunk in completion.stream():
            yield b"data: " + orjson.dumps(chunk) + b"\n\n"
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield b"data: " + orjson.dumps({"error": {"message": f"decoding failed: {error}", "type": "engine_error", "code": 500}}) + b"\n\n"
    finally:
        completion.samples.close()


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _error(status: int, message: str, code: str = "invalid_request_error") -> Response:
    return _json({"error": {"message": message, "type": code, "code": status, "param": None}}, status)


def serve(
    model_dir: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    model_name: str | None = None,
    device: str | None = None,
    max_model_len: int | None = None,
    ready_file: Path | None = None,
) -> None:
    """Load the model and serve it until SIGINT or SIGTERM. ``ready_file`` gets ``{"url", "port", "pid"}`` once requests are taken."""
    if host not in ("127.0.0.1", "localhost"):
        raise UsageError(f"refusing to listen on {host}: the engine has no authentication", "put a proxy with tokens in front of it")
    listener = reserve_port(host, port)  # before the model is loaded, so that the address is known to be ours
    engine = TransformersEngine(model_dir, device, max_model_len)
    name = model_name or model_dir.resolve().name
    app = create_app(engine, name, os.environ.get("LEYDEN_NONCE", ""))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2))
    address = f"http://{host}:{listener.getsockname()[1]}/v1"
    if ready_file is not None:
        staging = ready_file.with_suffix(".tmp")
        staging.write_text(json.dumps({"url": address, "port": listener.getsockname()[1], "pid": os.getpid()}))
        staging.rename(ready_file)
    dtype = str(engine.model.dtype).removeprefix("torch.")
    print(f"serving {name} at {address} ({engine.model.device}, {dtype})", file=sys.stderr, flush=True)
    try:
        server.run(sockets=[listener])
    finally:
        engine.close()


def main() -> None:
    watch_parent()
    parser = argparse.ArgumentParser(prog="leyden.models.embedded.server")
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model-name")
    parser.add_argument("--device")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--ready-file", type=Path)
    parser.add_argument("--hold", action="store_true", help="load the model only when the parent says so")
    options = vars(parser.parse_args())
    if options.pop("hold"):
        wait_for_release()
    try:
        serve(**options)
    except LeydenError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    leave_after(main)
