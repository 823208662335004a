"""What is read of JSON is not kept: a process that reads a million ids is no larger for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from leyden.server import codec, messages

N = 4000
MOST = 20_000  # bytes; pydantic's own cache would keep 300,000

READERS: dict[str, Callable[[str], object]] = {
    "a list of records": lambda name: messages.REJECTIONS.validate_json(_rejection(name)),
    "a record": lambda name: messages.Resolve.model_validate_json(f'{{"key":"{name}"}}'),
    "a value": lambda name: codec.decode(f'["{name}"]'.encode()),
}


def _rejection(name: str) -> bytes:
    return f'[{{"source":"{name}","reason":"r","n":1,"example":"e","last_at":1}}]'.encode()


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
