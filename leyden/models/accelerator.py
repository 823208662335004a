"""What the driver must know of NVIDIA GPUs without loading torch: how many, how much memory is taken, and by whom.

Read through NVML where ``nvidia-ml-py`` is installed, else from ``nvidia-smi``, which every driver brings. Neither: no GPU.
"""

from __future__ import annotations

import asyncio
import csv
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from leyden.errors import Unavailable

MIB = 1 << 20
TOLERANCE = 256 * MIB  # what a driver keeps or gives back by itself
FREE_WITHIN = 60.0  # seconds


@dataclass(frozen=True)
class Gpu:
    """One device at one moment. Sizes in bytes. ``holders``: pid → memory, None where the driver does not tell (containers, WSL)."""

    uuid: str
    name: str
    total: int
    used: int
    capability: tuple[int, int]
    holders: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def has_bf16(self) -> bool:
        return self.capability >= (8, 0)


ReadGpus = Callable[[], Sequence[Gpu]]


def read_gpus() -> list[Gpu]:
    """The GPUs that a CUDA program started by us would see; empty where there is none. Raises ``Unavailable`` for a broken driver."""
    gpus = _read_all()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    chosen = [name.strip() for name in visible.split(",")]
    return [gpu for i, gpu in enumerate(gpus) if any(name == str(i) or (name and gpu.uuid.startswith(name)) for name in chosen)]


async def wait_free(before: Sequence[Gpu], ours: Collection[int], read: ReadGpus = read_gpus, timeout: float = FREE_WITHIN) -> None:
    """Return once no device lists a process of ``ours`` and each one's memory is back to where it was ``before``.

    What another program took meanwhile is not held against us. Returns at once where there was no GPU. Raises ``Unavailable`` naming
    who holds the memory after ``timeout`` seconds.
    """
    then = {gpu.uuid: gpu for gpu in before}
    deadline = time.monotonic() + timeout
    pause = 0.1
    while then:
        now = [gpu for gpu in await asyncio.to_thread(read) if gpu.uuid in then]
        taken = [sentence for gpu in now if (sentence := _still_taken(then[gpu.uuid], gpu, ours))]
        if not taken:
            return
        if time.monotonic() > deadline:
            raise Unavailable(f"after {timeout:g} s {'; '.join(taken)}", "see who: nvidia-smi; end that process, then start again")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _still_taken(before: Gpu, now: Gpu, ours: Collection[int]) -> str | None:
    others = sum(max(0, (used or 0) - (before.holders.get(pid) or 0)) for pid, used in now.holders.items() if pid not in ours)
    excess = now.used - before.used - others
    left = [pid for pid in now.holders if pid in ours]
    if not left and excess <= TOLERANCE:
        return None
    who = ", ".join(_name(pid) for pid in left or now.holders) or "nobody that the driver lists"
    return f"{max(excess, 0) / MIB:.0f} MiB of {now.name} are still held by {who}"


def _name(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"  # gone, or of another container


def _read_all() -> list[Gpu]:
    try:
        import pynvml
    except ImportError:
        return _from_nvidia_smi() if shutil.which("nvidia-smi") else []
    return _from_nvml(pynvml)


def _from_nvml(nvml) -> list[Gpu]:  # type: ignore[no-untyped-def]  # a module without types
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return []
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_DRIVER_NOT_LOADED, nvml.NVML_ERROR_NO_PERMISSION):
            return []
        raise Unavailable(f"the NVIDIA driver does not answer: {error}", "try nvidia-smi") from error
    try:
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            gpus.append(
                Gpu(
                    uuid=_text(nvml.nvmlDeviceGetUUID(device)),
                    name=_text(nvml.nvmlDeviceGetName(device)),
                    total=memory.total,
                    used=memory.used,
                    capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(device)),
                    holders={process.pid: process.usedGpuMemory for process in processes},
                )
            )
        return gpus
    except nvml.NVMLError as error:
        raise Unavailable(f"the NVIDIA driver does not answer: {error}", "try nvidia-smi") from error
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes


def _from_nvidia_smi() -> list[Gpu]:
    holders: dict[str, dict[int, int | None]] = {}
    for uuid, pid, used in _query("--query-compute-apps=gpu_uuid,pid,used_memory"):
        holders.setdefault(uuid, {})[int(pid)] = int(used) * MIB if used.isdigit() else None
    rows = _query("--query-gpu=uuid,name,memory.total,memory.used,compute_cap")
    return [
        Gpu(uuid, name, int(total) * MIB, int(used) * MIB, _capability(capability), holders.get(uuid, {}))
        for uuid, name, total, used, capability in rows
    ]


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _query(what: str) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired as error:
        raise Unavailable("nvidia-smi does not answer within 30 s", "the driver hangs: see the system's log") from error
    if answer.returncode:  # a driver that is not loaded is no GPU, as far as we are concerned
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(answer.stdout.splitlines()) if row]
