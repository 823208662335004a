"""The recipe as its users start it: store, runners and algorithm in three processes, with a real engine and a real training."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tinymodel import make_tiny_model

from leyden.models.registry import check_model_dir
from leyden.process import MARKER, end_leftovers, new_marker

pytestmark = pytest.mark.timeout(1200)  # three processes import torch, one after another

RECIPE = Path(__file__).parents[1] / "agentlightning"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def test_the_recipe_in_three_processes(tmp_path):
    tiny_model = make_tiny_model(tmp_path / "tiny")
    marker, port = new_marker(), free_port()
    env = os.environ | {MARKER: marker}
    url = f"http://127.0.0.1:{port}"

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *command], env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    store = start("-m", "leyden", "store", "--port", str(port), "--database", str(tmp_path / "store.db"), "--ready-file", "ready")
    try:
        while not (tmp_path / "ready").exists():
            assert store.poll() is None
        runners = start(str(RECIPE / "recipe_runners.py"), url)
        algorithm = start(str(RECIPE / "recipe_algorithm.py"), url, str(tiny_model), str(tmp_path / "version_1"), str(free_port()))
        out, _ = algorithm.communicate(timeout=900)
        assert algorithm.returncode == 0
        assert out.startswith(str(["succeeded"] * 6)), out
        assert out.rstrip().endswith(" 0")  # the training's exit status
        check_model_dir(tmp_path / "version_1")
        for process in (runners, store):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal's Ctrl+C does: to the children too
            process.communicate(timeout=60)
    finally:
        end_leftovers(marker)
