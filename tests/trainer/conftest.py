from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from leyden.algorithm.sft.report import Board
from leyden.process import MARKER, find_by_marker, new_marker


class Talk(Board):
    """A board that remembers what it said."""

    def __init__(self) -> None:
        self.lines = io.StringIO()
        super().__init__(Console(file=self.lines, width=200))

    @property
    def said(self) -> str:
        return self.lines.getvalue()


@pytest.fixture
def talk():
    return Talk()


@pytest.fixture
def nothing_left(monkeypatch):
    """Everything that the test starts carries a marker; at its end nothing that does lives."""
    marker = new_marker()
    monkeypatch.setenv(MARKER, marker)
    yield marker
    assert find_by_marker(marker) == []
