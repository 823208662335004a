"""Room for what a run writes."""

from __future__ import annotations

import shutil
from pathlib import Path

from leyden.doctor.finding import Finding, ok, problem, warning

GIB = 1 << 30
SMOLLM2 = 271 << 20  # bytes: the model of the demo
COMFORT = 4  # versions: a base, a champion, a previous one, and the next in the making


def check_disk(directory: Path, model: Path | None) -> Finding:
    """Every iteration keeps one whole model; the base is hard-linked where ``models`` and ``runs`` share a file system."""
    size = model_size(model) if model else SMOLLM2
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    room = free // max(size, 1)
    detail = f"{free / GIB:.1f} GiB free, room for {room} versions of {model or 'the demo model'} ({size / GIB:.2f} GiB each)"
    check = f"disk at {directory}"
    if room < 1:
        return problem(check, detail, "make room, or give another place with --runs and --models")
    if room < COMFORT:
        return warning(check, detail, "make room: leyden runs list shows what there is, and a run's directory can be removed whole")
    return ok(check, detail)


def model_size(directory: Path) -> int:
    """Bytes of its weights."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
