from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tinymodel import make_tiny_model


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("embedded") / "tiny")


@pytest.fixture
def engine(tiny_dir: Path) -> Iterator:
    from leyden.models.embedded.engine import TransformersEngine

    engine = TransformersEngine(tiny_dir, device="cpu")
    yield engine
    engine.close()
