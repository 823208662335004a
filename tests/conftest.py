"""The order of the files: those that take longest begin first, so that no worker is left alone with one at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leyden.process import end_leftovers, new_marker

LONGEST = (
    "test_store_machine_postgres.py",
    "test_whole_loop.py",
    "test_otlp_fuzz.py",
    "test_query_plans.py",
    "test_store_machine_sqlite.py",
    "test_recipe.py",
    "test_store_migrations.py",
    "test_trl_backend.py",
    "test_driver_killed.py",
    "test_claim_races.py",
    "test_everything_killed.py",
    "test_store_failpoints.py",
    "test_store_killed.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture
def marker() -> Iterator[str]:
    """For the processes that a test starts: none may be left at its end."""
    value = new_marker()
    yield value
    assert end_leftovers(value) == 0, "the test left processes behind"
