"""Where models will run, in which precision, and who else is there."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence

import psutil

from leyden.doctor.finding import Finding, ok, problem, warning
from leyden.errors import Unavailable
from leyden.models.accelerator import Gpu, read_gpus
from leyden.models.device import cpu_has_bf16

GIB = 1 << 30
CROWDED = 0.3  # of the memory: the recipe's engine asks for 0.7


def check_accelerators() -> tuple[Sequence[Gpu], list[Finding]]:
    try:
        gpus = read_gpus()
    except Unavailable as error:
        return [], [problem("accelerator", error.message, error.hint or "nvidia-smi")]
    return gpus, [_describe(gpu) for gpu in gpus] or [_without()]


def _describe(gpu: Gpu) -> Finding:
    detail = f"{gpu.name}, {gpu.used / GIB:.1f} of {gpu.total / GIB:.1f} GiB taken, {'bf16' if gpu.has_bf16 else 'fp16 (no bf16)'}"
    holders = ", ".join(_holders(gpu))
    if gpu.used > CROWDED * gpu.total:
        pids = " ".join(map(str, gpu.holders))
        fix = f"end what you do not need: kill {pids}" if pids else "see who holds it: nvidia-smi"
        return warning("accelerator", f"{detail}, by {holders or 'nobody that the driver lists'}", fix)
    return ok("accelerator", f"{detail}, by {holders}" if holders else detail)


def _holders(gpu: Gpu) -> Iterator[str]:
    for pid, used in gpu.holders.items():
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            name = "a process of another container"
        yield f"{name} (pid {pid}{f', {used / GIB:.1f} GiB' if used else ''})"


def _without() -> Finding:
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ok("accelerator", "Apple's GPU (mps), by the embedded engine and TRL")
    if cpu_has_bf16():
        return ok("accelerator", "none: the CPU, dtype bf16, which it computes in")
    return ok("accelerator", "none: the CPU, dtype fp32 because this CPU has no bf16 of its own (emulated, it is slower)")
