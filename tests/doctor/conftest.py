"""Model directories small enough to be written by hand, and processes that are really there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leyden.models.template import HERMES

WEIGHTS = (2).to_bytes(8, "little") + b"{}"

STRANGER = """
import http.server, json, sys

class Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"status": "ok"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Stranger)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a directory that is whole, though nothing could load its weights."""

    def make(name: str = "model", template: str | None = None, eos: int | None = 2, config: dict | None = None) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        marks = [{"content": mark, "id": number} for number, mark in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]
        (directory / "config.json").write_text(json.dumps(config or {}))
        (directory / "generation_config.json").write_text(json.dumps({} if eos is None else {"eos_token_id": eos}))
        (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": marks}))
        (directory / "tokenizer_config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(WEIGHTS)
        (directory / "chat_template.jinja").write_text(HERMES.read_text() if template is None else template)
        return directory

    return make


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Somebody else's server, which answers 200 to whatever it is asked, ``/health`` included: its port and its pid."""
    process = subprocess.Popen([sys.executable, "-c", STRANGER, request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.communicate()
