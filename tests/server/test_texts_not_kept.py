"""What is read of JSON is not kept: a process that reads a million ids is no larger for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from pydantic import TypeAdapter, ValidationError

from leyden.environments import stored
from leyden.runners.tracer import jsonable
from leyden.server import codec, messages

N = 4000
MOST = 20_000  # bytes; pydantic's own cache would keep 300,000


def _reads(adapter: TypeAdapter[object]) -> Callable[[str], object]:
    def read(name: str) -> None:
        with suppress(ValidationError):  # it is none of its records, but it was read
            adapter.validate_json(f'["{name}"]')

    return read


READERS: dict[str, Callable[[str], object]] = {
    **{name: _reads(value) for name, value in vars(messages).items() if isinstance(value, TypeAdapter) and name != "NUMBER"},
    "a record": lambda name: messages.Resolve.model_validate_json(f'{{"key":"{name}"}}'),
    "a value": lambda name: codec.decode(f'["{name}"]'.encode()),
    "a stored attempt": lambda name: stored.parse(f'["{name}"]'),
    "an attribute": lambda name: jsonable(messages.Resolve(key=name)),
}


@pytest.mark.parametrize("reader", READERS)
def test_of_texts_that_were_read_none_is_kept(reader: str) -> None:
    read = READERS[reader]
    read("first")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(N):
            read(f"{reader}-{n:020}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < MOST
