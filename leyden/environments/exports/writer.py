"""Attempts in, lines out: one row at a time into a temporary file, which is validated, synced and renamed when it is whole."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from leyden.environments.exports.candidates import Candidates
from leyden.environments.exports.format import Format, Line
from leyden.environments.exports.options import ExportOptions
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.pair import LEFT, FilePair
from leyden.environments.exports.profile import profile_named
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.sidecar import provenance, write_sidecar
from leyden.environments.exports.source import Source, as_source
from leyden.environments.exports.validate import validate
from leyden.environments.redaction import redact_row
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.errors import UsageError
from leyden.files import disk_errors

# str.splitlines() ends a line at these too, and JSON allows them in a text: a reader that uses it would cut the row in two.
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def write_export(
    result: EnvironmentRunResult | Source | Path | str, path: Path | str, format: Format, options: ExportOptions
) -> ExportReport:
    """Write ``path`` and its sidecar, both or none; what lay there is replaced, and what an export left there is removed where nothing is
    written.

    Two exports of one result with the same options are equal, byte for byte. Memory does not grow with the result, but for about 120 bytes
    a row that tell duplicates.
    """
    source, path = as_source(result), Path(path)
    if source.path is not None and source.path.resolve() == path.resolve():
        raise UsageError(f"{path} is the result itself", "name another file")
    if options.min_value is not None and format.learns_from_failures:
        raise UsageError(f"min_value chooses among what passed, and {format.name} rows hold failures too", "leave it out")
    with disk_errors(path.parent), FilePair(path, scratch=options.dry_run) as pair:
        export = _Export(format, replace(options, profile=options.profile or format.profile), pair.lines, pair.provenance)
        for task in source.tasks():
            export.add(task)
        report = export.report()
        if report.rows == 0:
            return report if options.dry_run or pair.remove() else report.warning_of(LEFT.format(path))
        pair.lines.flush()
        validate(pair.lines_path, format, profile_named(export.options.profile or format.profile))
        if options.dry_run:
            return report
        write_sidecar(pair, source, format.name, export.options.as_dict(), report)
        pair.publish()
    return replace(report, path=path)


class _Export:
    """Counts what becomes of each attempt while rows are written."""

    def __init__(self, format: Format, options: ExportOptions, lines: BinaryIO, provenance: BinaryIO) -> None:
        self.options = options
        self._format = format
        self._profile = profile_named(options.profile or format.profile)
        self._lines = lines
        self._provenance = provenance
        self._candidates = Candidates(options, format.learns_from_failures)
        self._counts = self._candidates.counts
        self._refused: Counter[str] = Counter()
        self._redacted: Counter[str] = Counter()
        self._rows = self._bytes = self._duplicates = 0
        self._seen: set[bytes] = set()
        self._sha256 = hashlib.sha256()

    def add(self, result: TaskResult) -> None:
        for item in self._format.make(result.task, self._candidates.of(result)):
            if isinstance(item, Line):
                self._counts[self._write(result, item)] += len(item.attempts)
            else:
                self._counts[item.outcome] += 1
                if item.reason is not None:
                    self._refused[item.reason] += 1

    def report(self) -> ExportReport:
        warnings = []
        if 0 < self._rows < self._profile.min_rows:
            warnings.append(f"{self._profile.name} needs {self._profile.min_rows} rows, and there are {self._rows}")
        return ExportReport(
            counts=dict(self._counts),
            rows=self._rows,
            bytes=self._bytes,
            sha256=self._sha256.hexdigest() if self._rows else None,
            unscored=dict(self._candidates.unscored),
            refused=dict(self._refused),
            duplicate_rows=self._duplicates,
            redacted=dict(self._redacted),
            warnings=tuple(warnings),
        )

    def _write(self, result: TaskResult, line: Line) -> Outcome:
        row, redacted = redact_row(line.row) if self.options.redact else (line.row, Counter[str]())
        if redacted and (problem := self._format.check(row)):  # two answers that differ in what was taken out are one, say
            self._refused[f"after redaction: {problem}"] += len(line.attempts)
            return Outcome.SKIPPED_AMBIGUOUS
        data = _encode(row)
        if data is None:
            return Outcome.SKIPPED_SURROGATE
        digest = hashlib.sha256(data)
        known = digest.digest()[:8] in self._seen
        if known and self.options.dedupe:
            return Outcome.SKIPPED_DUPLICATE
        cap, size = self._profile.max_bytes, len(data) + 1
        if cap is not None and size > cap:
            return Outcome.SKIPPED_OVERSIZED
        if self._rows == self._profile.max_rows or (cap is not None and self._bytes + size > cap):
            return Outcome.DROPPED_OVER_CAP
        if self._rows == self.options.limit:
            return Outcome.DROPPED_OVER_LIMIT
        self._seen.add(digest.digest()[:8])
        self._duplicates += known
        self._redacted += redacted
        self._rows += 1
        self._bytes += size
        self._sha256.update(data + b"\n")
        self._lines.write(data + b"\n")
        self._provenance.write(json.dumps(provenance(result, line, digest.hexdigest())).encode() + b"\n")
        return Outcome.WRITTEN


def _encode(value: dict[str, Any]) -> bytes | None:
    """One line of JSON in UTF-8, keys in the order given; None for what UTF-8 cannot hold."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()
    except UnicodeEncodeError:
        return None
