from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from store_nursery import Nursery
    from store_postgres import PostgresProcess
    from store_room import Room


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ten times the faults may take ten times as long."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent and item.path.name.startswith("test_store_")]
    if ours:
        from store_room import SCALE

        for item in ours:
            item.add_marker(pytest.mark.timeout(300 * SCALE))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    from store_nursery import Nursery

    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    """Not in pytest's own directory: that is for one user, and PostgreSQL runs as another where we are root."""
    from store_postgres import PostgresProcess

    with (
        tempfile.TemporaryDirectory(prefix="leyden-pg-", ignore_cleanup_errors=True) as directory,
        PostgresProcess(Path(directory)) as postgres,
    ):
        yield postgres


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the database; a test that is for one only says so: ``@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)``."""
    return str(request.param)


@pytest.fixture
def room(kind: str, request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery) -> Iterator[Room]:
    from store_room import open_room

    with open_room(kind, tmp_path, nursery, request.getfixturevalue("postgres") if kind == "postgres" else None) as room:
        yield room
