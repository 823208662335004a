"""``leyden tokens``: whether what is trained on is what the model sampled, call by call."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.audit import AuditCounts, CallAudit, Continuity, Finding
from leyden.cli.printing import DEFAULT_STORE, LATEST, AsJson, find_rollout, print_json, print_table, say
from leyden.errors import NotFound, UsageError

if TYPE_CHECKING:
    from leyden.server.interface import Store

PAGE = 500  # rollouts whose calls are read at once
SHOWN = 100  # characters of a text on a line
COLUMNS = (
    "rollout", "attempt", "turn", "read", "sampled", "finish", "continuity", "findings", "at", "was sampled as", "is in the prompt as",
)  # fmt: skip

Target = Annotated[
    str,
    typer.Argument(
        help="A run's id or directory, an eval's directory, or a rollout's id; also how an id begins. @latest: the latest run here, or the"
        " latest rollout of the store that --store names.",
        metavar="OF",
    ),
]


def run(
    target: Target = LATEST,
    finding: Annotated[list[Finding] | None, typer.Option(help="Only calls with this finding. Repeat it for more.")] = None,
    realigned: Annotated[bool, typer.Option("--realigned", help="Only prompts whose ids a template or tokenizer changed.")] = False,
    forked: Annotated[bool, typer.Option("--forked", help="Only prompts in which the agent changed its history.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Of a rollout: only this attempt.")] = None,
    limit: Annotated[int, typer.Option(help="How many calls.", min=1)] = 50,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if any call is not clean.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="The directory of the runs.", metavar="DIR")] = Path("runs"),
    store: Annotated[
        str | None,
        typer.Option("--store", help=f"The store; else a run's own, and of a rollout LEYDEN_STORE's or {DEFAULT_STORE}.", metavar="URL"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show of each call what it read and sampled, what its audit found, and how its prompt goes on with what was sampled before.

    clean: in the very ids. realigned: the same messages in other ids, with the first that differs marked in both texts. forked: the agent
    changed its history, and where. See docs/token-fidelity.md.
    """
    here = None if store is not None and target == LATEST else runs
    wanted = {Continuity.REALIGNED} if realigned else set()
    wanted |= {Continuity.FORKED} if forked else set()
    most = None if all_ else limit
    counts, chosen = asyncio.run(_read(target, attempt, here, store, lambda call: _is_asked_for(call, wanted, set(finding or ())), most))
    more = most is not None and len(chosen) > most
    chosen = chosen[:most]
    if as_json:
        calls = [call.model_dump(mode="json") for call in chosen]
        print_json(counts=counts.model_dump(mode="json"), clean=counts.clean, calls=calls, more=more)
    else:
        print_table(COLUMNS, [_row(call) for call in chosen])
        if more:
            say(f"the first {limit}; see more with --limit N or --all")
        say(str(counts))
    if check and not counts.clean:
        raise typer.Exit(1)


async def _read(
    target: str, attempt: int | None, runs: Path | None, url: str | None, is_asked_for: Callable[[CallAudit], bool], most: int | None
) -> tuple[AuditCounts, list[CallAudit]]:
    """The counts of all calls; and those that are asked for, no more than it takes to see whether there are over ``most``."""
    async with _store_of(target, runs, url) as (store, run_id):
        if run_id is None and await store.list_rollouts(run_id=target, limit=1):
            run_id = target
        if run_id is None:
            calls = await store.list_audits([await find_rollout(store, target)], attempt)  # type: ignore[arg-type]
            return _counted(calls), [call for call in calls if is_asked_for(call)]
        if attempt is not None:
            raise UsageError(f"{target} is no rollout, and --attempt is of one", "leave it out, or name a rollout")
        chosen: list[CallAudit] = []
        async for page in _pages(store, run_id or None):
            chosen += filter(is_asked_for, page)
            if most is not None and len(chosen) > most:
                break
        return await store.count_audits(run_id or None), chosen


@asynccontextmanager
async def _store_of(target: str, runs: Path | None, url: str | None) -> AsyncIterator[tuple[Store, str | None]]:
    """The store that holds ``target``, and the run that is asked for: "" for all that is in it, None where it may be a rollout."""
    from leyden.algorithm.run_store import store_in, store_of_run
    from leyden.algorithm.sft.rundir import RunDir
    from leyden.server.client import StoreClient

    directory = _directory(target, runs)
    if directory is None:
        async with StoreClient(url or os.environ.get("LEYDEN_STORE", DEFAULT_STORE)) as client:
            yield client, None
    elif (directory / "config.json").is_file():
        run = RunDir(directory.resolve())
        async with store_of_run(run, url) as store:
            yield store, run.id
    else:
        async with store_in(directory) as store:
            yield store, ""


def _directory(target: str, runs: Path | None) -> Path | None:
    """Of a run, or of an eval that has a store of its own."""
    from leyden.algorithm.sft.rundir import RunDir

    if (Path(target) / "config.json").is_file() or (Path(target) / "store.db").is_file():
        return Path(target)
    try:
        return RunDir.find(runs, target).path if runs is not None and runs.is_dir() else None
    except NotFound:
        return None


async def _pages(store: Store, run_id: str | None) -> AsyncIterator[list[CallAudit]]:
    after: str | None = None
    while page := await store.list_rollouts(run_id=run_id, after=after, limit=PAGE):
        yield await store.list_audits([rollout.id for rollout in page])
        after = page[-1].id


def _counted(calls: Iterable[CallAudit]) -> AuditCounts:
    """As the store counts them."""
    numbers: Counter[str] = Counter()
    continuity: Counter[Continuity] = Counter()
    findings: Counter[Finding] = Counter()
    for call in calls:
        audit = call.audit
        if call.late:
            numbers["late"] += 1
        elif call.status != "ok":
            numbers["failed"] += 1
        elif audit is None:
            numbers["unaudited"] += 1
        else:
            numbers.update({"calls": 1, "flagged": bool(audit.findings), "exact": audit.exact})
            numbers["vocabulary_unknown"] += audit.vocabulary is None
            findings.update(audit.findings)
            continuity.update([audit.continuity] if audit.continuity else [])
    return AuditCounts(**numbers, continuity=dict(continuity), findings=dict(findings))


def _is_asked_for(call: CallAudit, continuity: set[Continuity], findings: set[Finding]) -> bool:
    if not continuity and not findings:
        return True
    return call.audit is not None and (call.audit.continuity in continuity or bool(findings & set(call.audit.findings)))


def _row(call: CallAudit) -> Sequence[Any]:
    audit = call.audit
    where = (call.rollout_id, call.attempt, f"{call.turn}.{call.choice}" if call.choice else call.turn)
    read = (call.prompt_tokens, call.completion_tokens, call.finish_reason if call.status == "ok" else call.status)
    if audit is None:
        return (*where, *read, "late" if call.late else "", "", "", "", "")
    marks = ", ".join(name for name, there in (("exact", audit.exact), ("late", call.late)) if there)
    told = (visible(audit.changed, 2 * SHOWN) or visible(audit.expected), visible(audit.found))
    continuity = f"{audit.continuity or '?'}{f' ({marks})' if marks else ''}"
    return (*where, *read, continuity, ", ".join(audit.findings), audit.differs_at, *told)


def visible(text: str | None, most: int = SHOWN) -> str:
    """On one line, with what cannot be seen written out; cut in the middle, where the marks are not."""
    written = "".join(char if char.isprintable() else _ESCAPES.get(char, f"\\x{ord(char):02x}") for char in text or "")
    mark = written.find("«")
    start = max(0, mark - SHOWN // 3)
    return written if len(written) <= most else f"{'…' if start else ''}{written[start : start + most]}…"


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
