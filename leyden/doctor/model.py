"""A model directory: can it be served, trained and read back?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from leyden.doctor.finding import Finding, ok, problem, skipped, warning
from leyden.errors import LeydenError, MissingExtra
from leyden.models.eos import eos_token_ids
from leyden.models.registry import check_model_dir
from leyden.models.template import TemplateReport, inspect_template

OURS = "leyden models import {0} --to DIRECTORY --chat-template hermes"


def check_model(directory: Path) -> Iterator[Finding]:
    try:
        check_model_dir(directory)
    except LeydenError as error:
        yield problem("model", error.message, error.hint or "leyden models import SOURCE")
        return
    yield ok("model", f"{directory} is whole")
    try:
        report = inspect_template(directory)
        ends = eos_token_ids(directory)
    except MissingExtra as error:
        yield skipped("template", error.message, error.hint)
    except LeydenError as error:
        yield problem("template", error.message, error.hint or OURS.format(directory))
    else:
        yield from _check_template(directory, report, ends)


def _check_template(directory: Path, report: TemplateReport, ends: frozenset[int]) -> Iterator[Finding]:
    ours = OURS.format(directory)
    if report.knows_tools:
        yield ok("template", "knows tools, their calls and their results")
    else:
        yield warning("template", "knows no tools: the model never sees those of an agent (right for an agent without)", ours)
    if not report.generation_prompt:
        yield problem("template", "has no generation prompt: the model would go on as the user", ours)
    if not report.prefix_preserving:
        what = "does not keep what the model wrote: turns cannot be merged, so each call of a conversation becomes a row of its own"
        yield warning("template", what, f"nothing, or a template that keeps it: {ours}")
    elif not report.keeps_thoughts:
        what = "drops <think> parts of earlier turns: a conversation in which the model thinks becomes a row a call"
        yield warning("template", what, f"nothing, or a template that keeps them: {ours}")
    else:
        yield ok("template", "prefix-preserving over two turns: a conversation becomes one row")
    yield _check_end(directory, report.end_of_turn, ends)


def _check_end(directory: Path, end_of_turn: str, ends: frozenset[int]) -> Finding:
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        return skipped("end of turn", "cannot be compared: there is no tokenizer.json")
    marks = {entry["content"]: entry["id"] for entry in json.loads(tokenizer.read_text()).get("added_tokens", [])}
    written = {mark: end_of_turn.index(mark) for mark in marks if mark in end_of_turn}
    if not written:
        return warning(
            "end of turn", "the template writes no special token after an answer", "add the model's end-of-turn token to its template"
        )
    first = min(written, key=lambda mark: (written[mark], -len(mark)))
    if marks[first] in ends:
        return ok("end of turn", f"{first} ({marks[first]}), where generation stops")
    fix = f"add {marks[first]} to eos_token_id in {directory / 'generation_config.json'}"
    return problem("end of turn", f"the template ends a turn with {first} ({marks[first]}), generation stops at {sorted(ends)}", fix)
