"""A chat-completions server on a loopback port whose answers are a Python function of the conversation."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[list[dict[str, Any]]], "dict[str, Any] | int"]


def call(expression: Any, name: str = "calculate") -> dict[str, Any]:
    arguments = expression if isinstance(expression, str) and expression.startswith("{") else json.dumps({"expression": expression})
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{id(function)}", "type": "function", "function": function}]}


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def solve(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model does that has learned the task."""
    last = messages[-1]
    if last["role"] == "tool":
        return say(f"### {last['content'][0]['text']} ###")
    found = re.search(r"\d[\d +*/-]*", last["content"])
    assert found
    return call(found[0].strip())


class ScriptedLLM:
    """``answer`` gets the messages and returns the assistant's message, or an HTTP status to fail with."""

    def __init__(self, answer: Answer = solve) -> None:
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body | {"authorization": self.headers["Authorization"]})
                message = answer(body["messages"])
                if isinstance(message, int):
                    self._send(message, {"error": {"message": "scripted failure"}})
                    return
                choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                self._send(200, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})

            def _send(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # an agent that was stopped does not wait for its answer

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ScriptedLLM:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
