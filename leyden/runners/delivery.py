"""An attempt's spans as the store takes them. One that it refuses costs neither the others nor the attempt."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import from_json

from leyden.errors import Busy, InvalidRequest, LeydenError, TooLarge, Unavailable
from leyden.runners.tracer import LEFT_OUT, LeftOut, Recorder
from leyden.server.codec import encode
from leyden.server.interface import Store
from leyden.types import LeaseRef


async def send(store: Store, ref: LeaseRef, spans: Sequence[bytes]) -> list[str]:
    """Store spans given as JSON; repeating it adds nothing. Why some were refused, one reason each.

    What is refused together is tried in halves. Raises what says that the store is away (``Unavailable``) or behind (``Busy``).
    """
    try:
        await store.add_encoded_spans(ref, spans)
    except (Busy, Unavailable):
        raise
    except (InvalidRequest, TooLarge) as error:
        if len(spans) == 1:
            return [f"{from_json(spans[0], cache_strings=False)['name']}: {error.message}"]
        half = len(spans) // 2
        return await send(store, ref, spans[:half]) + await send(store, ref, spans[half:])
    except LeydenError as error:  # it knows no such attempt (any more): that is so for all of them
        return [error.message] * len(spans)
    return []


def left_out_span(recorder: Recorder, left_out: LeftOut, at_ns: int) -> bytes:
    """A note in the attempt's trace; the same one when it is repeated."""
    attributes = {"leyden.count": left_out.n, "leyden.reason": left_out.reason}
    return encode({
        "trace_id": recorder.trace_id, "parent_id": recorder.root_id, "span_id": recorder.trace_id[:16], "name": LEFT_OUT,
        "start_ns": at_ns, "end_ns": at_ns, "status": "error",
        "status_message": f"{left_out.n} spans left out: {left_out.reason}", "attributes": attributes,
    })  # fmt: skip
