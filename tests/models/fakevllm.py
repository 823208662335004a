"""A server with vLLM's command line and the few routes the engine uses, with no model in it. ``--fake WHAT`` forces a fault."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--port", type=int)
parser.add_argument("--served-model-name", nargs="+")
parser.add_argument("--fake", default="")
args, _ = parser.parse_known_args()

if args.fake == "die":
    print("ValueError: no kernel image is available", file=sys.stderr)
    sys.exit(1)
if args.fake == "other-name":
    args.served_model_name = ["somebody-else"]

loaded: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": name} for name in args.served_model_name + loaded]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/load_lora_adapter":
            if "refused" in body["lora_path"]:
                return self.answer(400, {"error": {"message": "modules_to_save is not supported"}})
            loaded.append(body["lora_name"])
        elif self.path == "/v1/unload_lora_adapter":
            if args.fake == "keeps-adapters":
                return self.answer(500, {"error": {"message": "no"}})
            if body["lora_name"] not in loaded:
                return self.answer(404, {"error": {"message": "not found"}})
            loaded.remove(body["lora_name"])
        elif self.path == "/v1/completions" and body["model"].startswith("version_3"):
            return self.answer(500, {"error": {"message": "the engine cannot apply it"}})
        self.answer(200, {})


# Like vLLM's EngineCore: the real work is in a process that the server started, here one that SIGTERM does not end.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
