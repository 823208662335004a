"""Lets the tests of this directory import ``storekit``, and gives them every kind of store."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from storekit import KINDS


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The store in this process and over HTTP, on each database."""
    return str(request.param)
