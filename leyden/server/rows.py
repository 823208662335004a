"""From captured records to rows, outside the thread that writes: encoded, without secrets, normalised, and packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from leyden.audit import Audit
from leyden.errors import InvalidRequest
from leyden.server.canonical import canonical, mark_altered
from leyden.server.codec import encode, pack_floats, pack_ids, redact, redact_text
from leyden.server.interface import AttemptEnd
from leyden.server.normalizer import normalize
from leyden.server.packing import Pieces, pack, pack_json
from leyden.types import Generation, LeaseRef, Span

MAX_ROWS = 1000  # in one batch of spans
MAX_BYTES = 4 << 20  # of one batch: what a beat may have to wait for
ROW_BYTES = 2048  # a row without its long values, about, as it lies in memory


@dataclass
class Batch:
    """Rows of one table, and the pieces of their long values. What only a transaction knows is missing: ``received_at``, ``late``."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    pieces: Pieces = field(default_factory=dict)
    size: int = 0  # bytes, about

    def add(self, row: dict[str, Any], pieces: Pieces) -> None:
        self.size += ROW_BYTES + sum([len(value) for value in row.values() if isinstance(value, bytes)])
        self.size += sum([len(piece) for key, piece in pieces.items() if key not in self.pieces])
        self.rows.append(row)
        self.pieces |= pieces

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        if len(batches) == 1:
            return batches[0]
        whole = cls(size=sum(batch.size for batch in batches))
        for batch in batches:
            whole.rows += batch.rows
            whole.pieces |= batch.pieces
        return whole

    @property
    def full(self) -> bool:
        return self.size >= MAX_BYTES or len(self.rows) >= MAX_ROWS


def span_batches(spans: Iterable[Span]) -> Iterator[Batch]:
    """At least one, that their fence is looked at even without a span."""
    batch = Batch()
    for span in spans:
        if batch.full:
            yield batch
            batch = Batch()
        pieces: Pieces = {}
        batch.add(_span_row(span, pieces), pieces)
    yield batch


def batch_of_spans(spans: Iterable[Span]) -> Batch:
    """All in one, however many: for a caller who has chosen how many go into one commit."""
    batch = Batch()
    for span in spans:
        pieces: Pieces = {}
        batch.add(_span_row(span, pieces), pieces)
    return batch


def batch_of_ends(ends: Iterable[AttemptEnd]) -> Batch:
    """The spans of all of them, each with its attempt's name. Raises ``InvalidRequest`` for JSON that is no span."""
    batch = Batch()
    for end in ends:
        for span in end.spans:
            pieces: Pieces = {}
            batch.add(_span_row(_span_of(span), pieces) | {"rollout_id": end.ref.rollout_id, "attempt": end.ref.attempt}, pieces)
    return batch


def _span_of(given: Span | bytes) -> Span:
    if isinstance(given, Span):
        return given
    try:
        return Span.model_validate_json(given)
    except ValidationError as error:
        raise InvalidRequest(f"spans: {error.errors(include_url=False)[0]['msg']}") from error


def _span_row(span: Span, pieces: Pieces) -> dict[str, Any]:
    sent = {"events": span.events, "links": span.links, "resource": span.resource}
    kept = {name: canonical(value) if value else value for name, value in sent.items()}
    attributes = mark_altered(canonical(span.attributes), span.attributes, {name: (kept[name], value) for name, value in sent.items()})
    return {
        "rollout_id": span.rollout_id,
        "attempt": span.attempt,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": redact_text(span.name),
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "status": span.status,
        "status_message": span.status_message and redact_text(span.status_message),
        "attributes": pack_json(attributes, pieces),
        "events": pack_json(kept["events"], pieces),
        "links": pack_json(kept["links"], pieces) if span.links else None,
        "resource": pack_json(kept["resource"], pieces) if span.resource else None,
        "scope": span.scope and redact_text(span.scope),
        **normalize(span.name, attributes),
    }


def generation_batch(ref: LeaseRef, generations: Sequence[Generation]) -> Batch:
    """Raises ``InvalidRequest`` for one that contradicts itself, or that names another attempt than ``ref``."""
    batch = Batch()
    for item in generations:
        if (item.rollout_id, item.attempt) != (ref.rollout_id, ref.attempt):
            raise InvalidRequest(f"generation {item.id} names another attempt than its lease")
        pieces: Pieces = {}
        batch.add(_generation_row(item, pieces), pieces)
    return batch


def _generation_row(item: Generation, pieces: Pieces) -> dict[str, Any]:
    if item.logprobs is not None and len(item.logprobs) != len(item.response_token_ids or ()):
        raise InvalidRequest(
            f"generation {item.id}: {len(item.logprobs)} logprobs for {len(item.response_token_ids or ())} response tokens"
        )
    prompt = pack_ids(item.prompt_token_ids)
    return {
        "id": item.id,
        "call_id": item.call_id,
        "rollout_id": item.rollout_id,
        "attempt": item.attempt,
        "choice": item.choice,
        "model": item.model,
        "deployment": item.deployment,
        "checkpoint": item.checkpoint,
        "status": item.status,
        "error": item.error and redact_text(item.error),
        "prompt_token_ids": None if prompt is None else pack([prompt], pieces),
        "response_token_ids": pack_ids(item.response_token_ids),
        "logprobs": pack_floats(item.logprobs),
        "sampling": redact(encode(item.sampling)),
        "finish_reason": item.finish_reason,
        "prompt_tokens": item.prompt_tokens,
        "completion_tokens": item.completion_tokens,
        "request": pack_json(item.request, pieces),
        "response": None if item.response is None else pack_json(item.response, pieces),
        "started_at": item.started_at,
        "latency": item.latency,
        **_audit_columns(item.audit),
    }


_TOLD = ("expected", "found", "changed", "vocabulary")


def _audit_columns(audit: Audit | None) -> dict[str, Any]:
    if audit is None:
        return dict.fromkeys(("findings", "continuity", "follows", "differs_at", "exact", "audit"))
    return {
        "findings": " ".join(audit.findings),
        "continuity": audit.continuity,
        "follows": audit.follows,
        "differs_at": audit.differs_at,
        "exact": audit.exact,
        "audit": redact(encode({name: value for name in _TOLD if (value := getattr(audit, name)) is not None})),
    }
