"""A store that runs in a loop of its own, for commands that a test runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from storekit import Kit

import leyden.cli

T = TypeVar("T")


@dataclass
class Room:
    url: str
    database: Path
    kit: Kit
    loop: asyncio.AbstractEventLoop
    capsys: pytest.CaptureFixture[str]

    def do(self, work: Callable[[Kit], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(self.kit), self.loop).result(60)

    def leyden(self, *args: str, status: int = 0) -> str:
        """What it printed on stdout, after checking its exit status; ``said`` has what it said."""
        self.capsys.readouterr()
        got = leyden.cli.run(list(args))
        out, self.said = self.capsys.readouterr()
        assert got == status, self.said
        assert "Traceback" not in self.said
        return out

    def about_store(self, *args: str, status: int = 0) -> str:
        return self.leyden(*args, "--store", self.url, status=status)

    said: str = ""
