"""An engine in a process of its own, to be killed: ``python small_engine.py``. It tells its port on stdout, and speaks vLLM's dialect."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from leyden.ports import reserve_port

PROMPT, ANSWER = [1, 2, 3], [7, 8, 9]


async def chat(request: Request) -> Response:
    body = await request.json()
    if body["messages"][-1]["content"] == "fail":
        return JSONResponse({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}, 500)
    envelope = {"id": "c", "created": 1, "model": body["model"]}
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(ANSWER), "total_tokens": len(PROMPT) + len(ANSWER)}
    if body.get("stream"):
        return StreamingResponse(_chunks({**envelope, "object": "chat.completion.chunk"}, usage), media_type="text/event-stream")
    await asyncio.sleep(0.1)
    choice = {"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "stop", **_tokens(ANSWER)}
    return JSONResponse({**envelope, "object": "chat.completion", "choices": [choice], "usage": usage, "prompt_token_ids": PROMPT})


async def _chunks(envelope: dict[str, Any], usage: dict[str, int]) -> AsyncIterator[bytes]:
    for position, token in enumerate(ANSWER):
        await asyncio.sleep(0.1)
        delta = {"role": "assistant", "content": "abc"[position]}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if token == ANSWER[-1] else None, **_tokens([token])}
        yield _event({**envelope, "choices": [choice], "prompt_token_ids": PROMPT})
    yield _event({**envelope, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _tokens(ids: list[int]) -> dict[str, Any]:
    return {"token_ids": ids, "logprobs": {"content": [{"token": str(token), "logprob": -0.5} for token in ids]}}


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


if __name__ == "__main__":
    socket = reserve_port("127.0.0.1", 0)
    print(f"http://127.0.0.1:{socket.getsockname()[1]}/v1", flush=True)
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")).run(sockets=[socket])
    sys.exit(0)
