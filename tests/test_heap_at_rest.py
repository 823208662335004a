"""What was there before a run is not looked at while it lasts, and the collector is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leyden.heap import RARELY, heap_at_rest


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, frozen)


def test_within_the_block_the_past_is_frozen_and_the_youngest_are_looked_at_rarely() -> None:
    with heap_at_rest():
        assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] == RARELY


def test_a_block_within_a_block_changes_nothing_and_ends_nothing() -> None:
    with heap_at_rest():
        with heap_at_rest():
            pass
        assert gc.get_freeze_count() > 0 and gc.get_threshold()[0] == RARELY


def test_it_ends_with_an_error_too() -> None:
    with pytest.raises(ValueError, match="no"), heap_at_rest():
        raise ValueError("no")


def test_what_somebody_else_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        threshold = gc.get_threshold()
        with heap_at_rest():
            assert gc.get_threshold() == threshold
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with heap_at_rest():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
