"""A chat-completions server on a loopback port that records what it is asked, byte for byte. Its answers are a function of the request."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]
Answer = Callable[[dict[str, Any]], "Message | int"]


def say(text: str | None, finish: str = "stop") -> Message:
    return {"role": "assistant", "content": text, "finish_reason": finish}


def call(name: str, arguments: dict[str, Any] | str = "{}", call_id: str = "call_1") -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}],
    }


def in_turn(*answers: Message | int) -> Answer:
    """The answers one after the other, by how many turns the assistant has had in this conversation."""

    def answer(request: dict[str, Any]) -> Message | int:
        return answers[sum(message["role"] == "assistant" for message in request["messages"])]

    return answer


class ModelStub:
    """``answer`` gets the request and returns the assistant's message (``finish_reason`` in it), or an HTTP status to fail with."""

    def __init__(self, answer: Answer = lambda request: say("4")) -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []  # found by name in any case
        self.raw: tuple[int, bytes, dict[str, str]] | None = None  # instead of an answer: status, body, headers
        self.cookie: str | None = None  # set with every answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.bodies.append(body)
                outer.headers.append(self.headers)
                if outer.raw is not None:
                    self._send_raw(*outer.raw)
                    return
                message = outer.answer(json.loads(body))
                if isinstance(message, int):
                    self._send(message, {"error": {"message": "scripted failure"}})
                    return
                finish = message.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop")
                choice = {
                    "index": 0,
                    "message": {name: value for name, value in message.items() if name != "finish_reason"},
                    "finish_reason": finish,
                }
                usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
                self._send(
                    200, {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": usage}
                )

            def _send(self, status: int, body: dict[str, Any]) -> None:
                cookie = {"Set-Cookie": outer.cookie} if outer.cookie else {}
                self._send_raw(status, json.dumps(body).encode(), {"Content-Type": "application/json", **cookie})

            def _send_raw(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # who was stopped does not wait for its answer

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    @property
    def first_requests(self) -> list[bytes]:
        """The bodies that begin a conversation, with the ids of sessions, calls and runs masked."""
        first = [body for body in self.bodies if not any(message["role"] == "assistant" for message in json.loads(body)["messages"])]
        return [re.sub(rb"[0-9a-f]{32}", b"ID", body) for body in first]

    def __enter__(self) -> ModelStub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
