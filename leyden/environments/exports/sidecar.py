"""Where the rows of a dataset came from: ``<path>.meta.json``. It holds no time, so that the same export gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.exports.format import Line
from leyden.environments.exports.pair import KIND, FilePair, sidecar_of
from leyden.environments.exports.report import ExportReport
from leyden.environments.exports.source import Source
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.results import TaskResult
from leyden.errors import NotFound, UsageError
from leyden.files import sha256_of

FORMAT = 1


def provenance(result: TaskResult, line: Line, sha256: str) -> dict[str, Any]:
    """Of one row: its task, its digest (without the newline), and its attempt, or its ``attempts``, each with its part in the row."""
    head = {"task_id": result.task.id, "sha256": sha256}
    if not line.parts:
        return {**head, **origin(line.attempts[0])}
    return {**head, "attempts": [{"part": part, **origin(made)} for part, made in zip(line.parts, line.attempts, strict=True)]}


def origin(attempt: AttemptResult) -> dict[str, Any]:
    return {
        "attempt_index": attempt.index,
        "score": None if attempt.score is None else attempt.score.value,
        "passed": attempt.passed,
        "rollout_id": attempt.rollout_id,
        "store_attempt": attempt.attempt,
        "generation_ids": [] if attempt.run is None else list(attempt.run.generation_ids),
    }


def _head(source: Source, exporter: str, options: dict[str, Any], report: dict[str, Any], dataset: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": KIND,
        "exporter": {"format": exporter, "version": version("leyden")},
        "dataset": dataset,
        "env": {"name": source.env_name, "k": source.k, "run_id": source.run_id, "selection": source.selection},
        "env_fingerprint": source.env_fingerprint.digest,
        "policy_fingerprint": source.policy_fingerprint.digest,
        "fingerprints": {"env": _components(source.env_fingerprint), "policy": _components(source.policy_fingerprint)},
        "options": options,
        "report": report,
    }


def write_sidecar(pair: FilePair, source: Source, exporter: str, options: dict[str, Any], report: ExportReport) -> None:
    """The head, then one line of the file for each row, in the rows' order."""
    dataset = {"file": pair.path.name, "sha256": report.sha256, "bytes": report.bytes, "rows": report.rows}
    head = json.dumps(_head(source, exporter, options, report.as_dict(), dataset), indent=2, ensure_ascii=True)
    pair.provenance.seek(0)
    with pair.sidecar_path.open("wb") as sidecar:
        sidecar.write(head.removesuffix("\n}").encode() + b',\n  "lines": [\n')
        for number, line in enumerate(pair.provenance):
            sidecar.write((b",\n" if number else b"") + b"    " + line.rstrip(b"\n"))
        sidecar.write(b"\n  ]\n}\n")


def read_sidecar(path: Path | str) -> dict[str, Any]:
    """The sidecar of the dataset at ``path``. Raises ``NotFound``, or ``UsageError`` where the dataset is not the one it tells of."""
    path = Path(path)
    sidecar = sidecar_of(path)
    if not path.is_file() or not sidecar.is_file():
        raise NotFound(f"no dataset with a sidecar at {path}", "export it again")
    try:
        told: dict[str, Any] = json.loads(sidecar.read_bytes())
        sha256 = told["dataset"]["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{sidecar} is no sidecar: {error}", "export it again") from error
    if sha256_of(path) != sha256:
        raise UsageError(f"{path} is not the dataset that {sidecar} tells of", "export it again")
    return told


def attempts_of(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The attempts behind one of a sidecar's ``lines``, whichever the format."""
    yield from line.get("attempts", [line])


def _components(fingerprint: Fingerprint) -> dict[str, Any]:
    return {"digest": fingerprint.digest, "components": dict(sorted(fingerprint.components.items()))}
