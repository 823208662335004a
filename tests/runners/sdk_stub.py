"""A model behind OpenAI's two APIs, streamed or not: it calls the first tool it is offered, and says "4" once it has a result."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
RESPONSE_USAGE = {
    "input_tokens": 10, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0}, "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 13,
}  # fmt: skip


class SDKStub:
    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = _response if self.path.endswith("/responses") else _completion
                data = answer(body)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> SDKStub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


def _completion(body: dict[str, Any]) -> bytes:
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    answered = any(message["role"] == "tool" for message in body["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "4"}
    if tools and not answered:
        call = {"id": "call_1", "type": "function", "function": {"name": tools[0], "arguments": "{}"}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    finish = "tool_calls" if "tool_calls" in message else "stop"
    base = {"id": "c-1", "created": 0, "model": "stub"}
    if not body.get("stream"):
        whole = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": USAGE}
        return json.dumps(base | whole).encode()
    delta = dict(message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": 0} | call for call in delta["tool_calls"]]
    chunks = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"object": "chat.completion.chunk", "choices": [], "usage": USAGE},
    ]
    return b"".join(b"data: " + json.dumps(base | chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def _response(body: dict[str, Any]) -> bytes:
    given = body["input"] if isinstance(body["input"], list) else []
    item: dict[str, Any] = {
        "type": "message", "id": "m-1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "4", "annotations": []}],
    }  # fmt: skip
    if body.get("tools") and not any(entry.get("type") == "function_call_output" for entry in given):
        item = {"type": "function_call", "id": "f-1", "call_id": "call_1", "name": body["tools"][0]["name"], "arguments": "{}"}
    response = {
        "id": "resp-1", "object": "response", "created_at": 0, "status": "completed", "model": "stub", "output": [item],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": RESPONSE_USAGE,
    }  # fmt: skip
    if not body.get("stream"):
        return json.dumps(response).encode()
    event = {"type": "response.completed", "sequence_number": 0, "response": response}
    return f"event: response.completed\ndata: {json.dumps(event)}\n\n".encode()
