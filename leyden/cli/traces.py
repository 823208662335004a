"""``leyden traces``: what agents did, call by call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.cli.printing import (
    DEFAULT_STORE,
    LATEST,
    AsJson,
    ListsByDefault,
    StoreURL,
    ask_store,
    check_prefix,
    find_rollout,
    instant,
    length,
    moment,
    only_one,
    print_json,
    print_table,
    say,
)
from leyden.errors import NotFound

if TYPE_CHECKING:
    from leyden.server.client import StoreClient
    from leyden.server.queries import Trace
    from leyden.types import Rejection, Span

app = typer.Typer(cls=ListsByDefault, add_completion=False, rich_markup_mode=None, help="List traces, and show one as a tree.")

PAGE = 1000
NOTHING = "no trace is like that"


@app.command("list")
def list_(
    rollout: Annotated[str | None, typer.Option(help="Of this rollout: its id, or how it begins.", metavar="ID")] = None,
    since: Annotated[str | None, typer.Option(help="That came since then: 2h (ago), or 2026-11-30T09:00.", metavar="TIME")] = None,
    until: Annotated[str | None, typer.Option(help="That came before then.", metavar="TIME")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1)] = 50,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    rejected: Annotated[bool, typer.Option("--rejected", help="Instead: what was sent and not stored, and why.")] = False,
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List traces, newest first: id, name, rollout and attempt, when, how long, spans, errors, tokens in and out."""
    if rejected:
        return _print_rejected(ask_store(store, lambda client: client.list_rejections()), as_json)
    start, end = instant(since), instant(until)

    async def pages(client: StoreClient) -> AsyncIterator[list[Trace]]:
        from leyden.server.queries import TraceQuery

        of_rollout = None if rollout is None else await find_rollout(client, rollout)
        query = TraceQuery(rollout_id=of_rollout, received_from=start, received_to=end)
        left = None if all_ else limit + 1
        while left is None or left > 0:
            query = query.model_copy(update={"limit": PAGE if left is None else min(PAGE, left)})
            page = await client.list_traces(query)
            if page:
                yield page
            if len(page) < query.limit:
                return
            query = query.model_copy(update={"after": page[-1].trace_id})
            left = None if left is None else left - len(page)

    async def print_all(client: StoreClient) -> bool:
        empty = True
        async for page in pages(client):
            _print(page)
            empty = False
        return empty

    async def collect(client: StoreClient) -> list[Trace]:
        return [trace async for page in pages(client) for trace in page]

    if all_ and not as_json:
        if ask_store(store, print_all):
            say(NOTHING)
        return
    found = ask_store(store, collect)
    more = not all_ and len(found) > limit
    found = found[:limit] if more else found
    if as_json:
        return print_json(traces=[trace.model_dump(mode="json") for trace in found], more=more)
    _print(found)
    if more:
        say(f"the first {limit}; see more with --limit N or --all")
    elif not found:
        say(NOTHING)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(help="A trace's id or a rollout's, how it begins, or @latest.", metavar="ID")],
    store: StoreURL = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show a trace, or all of a rollout, as a tree: names, times, tokens, errors."""
    spans = ask_store(store, lambda client: _spans(client, id_))
    if as_json:
        return print_json(spans=[span.model_dump(mode="json") for span in spans])
    by_trace: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_trace[span.trace_id].append(span)
    for trace_id, members in by_trace.items():
        print(f"trace {trace_id}")
        _print_tree(members)


async def _spans(client: StoreClient, prefix: str) -> list[Span]:
    from leyden.server.queries import SpanQuery, TraceQuery

    hint = "see which there are: leyden traces"
    if prefix == LATEST:
        traces = await client.list_traces(TraceQuery(limit=1))
        if not traces:
            raise NotFound("there is no trace yet", hint)
        prefix = traces[0].trace_id
    else:
        check_prefix(prefix, hint)
        traces = await client.list_traces(TraceQuery(id_prefix=prefix, limit=4))
    if traces:
        trace_id = only_one("trace", prefix, [trace.trace_id for trace in traces], hint)
        query = SpanQuery(trace_id=trace_id, limit=PAGE)
    else:
        try:
            query = SpanQuery(rollout_id=await find_rollout(client, prefix), limit=PAGE)
        except NotFound as error:
            raise NotFound(f"no trace or rollout {prefix}", hint) from error
    found: list[Span] = []
    while page := await client.query_spans(query):
        found += page
        query = query.model_copy(update={"after": f"{page[-1].trace_id}-{page[-1].span_id}"})
    return found


def _print_tree(spans: Sequence[Span]) -> None:
    """Depth first, without recursion: a trace may be as deep as it is long. What names a parent that is not here stands at the top."""
    known = {span.span_id for span in spans}
    children: defaultdict[str | None, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns), reverse=True):  # the last one is taken first
        children[span.parent_id if span.parent_id in known and span.parent_id != span.span_id else None].append(span)
    waiting = [(span, 1) for span in children.pop(None, [])]
    while waiting or children:
        if not waiting:  # spans that are each other's parents
            waiting = [(span, 1) for span in children.pop(next(iter(children)))]
        span, depth = waiting.pop()
        print(f"{'  ' * depth}{_describe(span)}")
        waiting += [(child, depth + 1) for child in children.pop(span.span_id, [])]


def _describe(span: Span) -> str:
    parts = [span.name, length(max(0, span.end_ns - span.start_ns) / 1e9)]
    if span.model:
        parts.append(span.model)
    if span.input_tokens is not None or span.output_tokens is not None:
        parts.append(f"{span.input_tokens or 0} → {span.output_tokens or 0} tokens")
    if span.late:
        parts.append("late")
    if span.status == "error":
        parts.append(f"ERROR {span.status_message or span.error_type or ''}".rstrip())
    return "  ".join(" ".join(part.split()) for part in parts)


def _print(found: Sequence[Trace]) -> None:
    columns = ("trace", "name", "rollout", "began", "took", "spans", "errors", "tokens in", "out")
    print_table(columns, [_row(trace) for trace in found])


def _row(trace: Trace) -> tuple[object, ...]:
    rollout = "" if trace.rollout_id is None else f"{trace.rollout_id}/{trace.attempt}"
    took = length(max(0, trace.end_ns - trace.start_ns) / 1e9)
    began = moment(trace.start_ns // 1000)
    return trace.trace_id, trace.name, rollout, began, took, trace.spans, trace.errors, trace.input_tokens, trace.output_tokens


def _print_rejected(found: Sequence[Rejection], as_json: bool) -> None:
    if as_json:
        return print_json(rejections=[rejection.model_dump(mode="json") for rejection in found])
    print_table(
        ("source", "reason", "n", "last", "for example"),
        [(item.source, item.reason, item.n, moment(item.last_at), item.example) for item in found],
    )
    if not found:
        say("nothing was refused")
