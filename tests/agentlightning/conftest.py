from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    from tinymodel import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
