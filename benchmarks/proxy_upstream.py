"""An engine that answers at once, as vLLM does: token ids, log-probabilities, usage. ``python proxy_upstream.py`` says its port.

Bytes made beforehand, told apart by the request's size and whether it wants a stream: what it costs is next to nothing.
"""

from __future__ import annotations

import asyncio
import json

import uvloop

SAMPLED = 24  # tokens in an answer
BYTES_PER_TOKEN = 4
SIZES = (2 << 10, 64 << 10)  # of prompts, in bytes
WORDS = [f" word{n}" for n in range(SAMPLED - 1)] + [""]


def main() -> None:
    answers = {size: (http(whole(size), "application/json"), http(stream(size), "text/event-stream")) for size in SIZES}

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Engine(answers), "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(serve())


class Engine(asyncio.Protocol):
    def __init__(self, answers: dict[int, tuple[bytes, bytes]]) -> None:
        self._answers = answers
        self._pending = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while (head := self._pending.find(b"\r\n\r\n")) >= 0:
            length = 0
            for line in bytes(self._pending[:head]).lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line[15:])
            end = head + 4 + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[head + 4 : end])
            del self._pending[:end]
            answer = self._answers[SIZES[len(body) > 16 << 10]]
            self._transport.write(answer[b'"stream":true' in body or b'"stream": true' in body])  # type: ignore[attr-defined]


def whole(size: int) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(WORDS)},
        "logprobs": {"content": [logprob(n) for n in range(SAMPLED)]},
        "finish_reason": "stop",
        "token_ids": [1000 + n for n in range(SAMPLED)],
    }
    ids = prompt_ids(size)
    return dump({**envelope("chat.completion"), "choices": [choice], "usage": usage(ids), "prompt_token_ids": ids})


def stream(size: int) -> bytes:
    ids = prompt_ids(size)
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    events = [{**envelope("chat.completion.chunk"), "choices": [opening], "prompt_token_ids": ids}]
    for n, word in enumerate(WORDS):
        choice = {
            "index": 0,
            "delta": {"content": word},
            "logprobs": {"content": [logprob(n)]},
            "finish_reason": "stop" if n == SAMPLED - 1 else None,
            "token_ids": [1000 + n],
        }
        events.append({**envelope("chat.completion.chunk"), "choices": [choice]})
    events.append({**envelope("chat.completion.chunk"), "choices": [], "usage": usage(ids)})
    return b"".join(b"data: " + dump(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def prompt_ids(size: int) -> list[int]:
    return [(n * 7919) % 49152 for n in range(size // BYTES_PER_TOKEN)]


def logprob(n: int) -> dict[str, object]:
    return {"token": WORDS[n], "logprob": -0.25 - n / 1000, "bytes": list(WORDS[n].encode()), "top_logprobs": []}


def envelope(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-0", "object": kind, "created": 1700000000, "model": "policy"}


def usage(ids: list[int]) -> dict[str, int]:
    return {"prompt_tokens": len(ids), "completion_tokens": SAMPLED, "total_tokens": len(ids) + SAMPLED}


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def http(body: bytes, content_type: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (content_type.encode(), len(body), body)


if __name__ == "__main__":
    main()
