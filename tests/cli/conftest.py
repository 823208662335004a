"""Lets the tests of this directory use ``storekit``, and gives them a running store."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from reading_room import Room
from storekit import open_kit


@pytest.fixture
def room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Room]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    path = tmp_path / "leyden.db"
    opened = open_kit("http-sqlite", path)
    kit = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(60)
    assert kit.url is not None
    yield Room(kit.url, path, kit, loop, capsys)
    asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
