"""Waiting until a GPU's memory is free again. The driver's answers are made up: no machine of ours has a GPU."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from leyden.errors import Unavailable
from leyden.models import accelerator
from leyden.models.accelerator import MIB, Gpu, read_gpus, wait_free

OURS = 111_111_111  # no such process
GIB = 1024 * MIB


def gpu(used: int, holders: dict[int, int | None] | None = None) -> Gpu:
    return Gpu("GPU-1", "H100", 80 * GIB, used, (9, 0), holders or {})


class Driver:
    """Answers a list of moments, the last one again and again."""

    def __init__(self, *moments: Gpu) -> None:
        self.asked = 0
        self._moments: Iterator[Gpu] = iter(moments)

    def __call__(self) -> list[Gpu]:
        self.asked += 1
        self._last = next(self._moments, getattr(self, "_last", None))
        return [self._last]


def test_without_a_gpu_there_is_nothing_to_wait_for():
    driver = Driver(gpu(0))
    asyncio.run(wait_free([], {OURS}, driver))
    assert driver.asked == 0


def test_it_waits_until_our_processes_are_gone_and_the_memory_is_back():
    driver = Driver(gpu(40 * GIB, {OURS: 39 * GIB}), gpu(40 * GIB), gpu(GIB + 100 * MIB))
    asyncio.run(wait_free([gpu(GIB)], {OURS}, driver))
    assert driver.asked == 3


def test_memory_that_stays_taken_is_an_error_that_names_the_holder():
    with pytest.raises(Unavailable, match=f"39936 MiB of H100 are still held by pid {OURS}"):
        asyncio.run(wait_free([gpu(GIB)], {OURS}, Driver(gpu(40 * GIB, {OURS: None})), timeout=0.0))
    with pytest.raises(Unavailable, match="nobody that the driver lists"):  # the driver of a container names no process
        asyncio.run(wait_free([gpu(GIB)], {OURS}, Driver(gpu(40 * GIB)), timeout=0.0))


def test_what_somebody_else_took_meanwhile_is_not_ours_to_wait_for():
    me = os.getpid()
    asyncio.run(wait_free([gpu(GIB, {me: GIB})], {OURS}, Driver(gpu(30 * GIB, {me: 30 * GIB})), timeout=0.0))


def test_hidden_gpus_do_not_count(monkeypatch):
    both = [gpu(0), Gpu("GPU-2", "T4", GIB, 0, (7, 5))]
    monkeypatch.setattr(accelerator, "_read_all", lambda: both)
    for visible, seen in ((None, both), ("", []), ("1", both[1:]), ("GPU-1", both[:1]), ("0,1", both), ("-1", [])):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert read_gpus() == seen


def test_nvidia_smi_is_read_where_there_is_no_nvml(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\ncase $1 in\n"
        '*compute-apps*) echo "GPU-1, 4711, 300"; echo "GPU-1, 4712, [N/A]";;\n'
        '*) echo "GPU-1, NVIDIA H100, 81559, 400, 9.0";;\nesac\n'
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert accelerator._from_nvidia_smi() == [
        Gpu("GPU-1", "NVIDIA H100", 81559 * MIB, 400 * MIB, (9, 0), {4711: 300 * MIB, 4712: None}),
    ]
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
    assert accelerator._from_nvidia_smi() == []


class FakeNvml:
    """The calls of ``nvidia-ml-py`` that are made, in its own names."""

    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_NO_PERMISSION = 9, 4

    class NVMLError(Exception):
        def __init__(self, value: int = 999) -> None:
            super().__init__(f"NVML error {value}")
            self.value = value

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    def __init__(self, init: Exception | None = None, count: Exception | int = 1) -> None:
        self.init, self.count, self.closed = init, count, False

    def nvmlInit(self) -> None:
        if self.init:
            raise self.init

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        if isinstance(self.count, Exception):
            raise self.count
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GIB, used=GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=4711, usedGpuMemory=300 * MIB), SimpleNamespace(pid=4712, usedGpuMemory=None)]

    def nvmlDeviceGetUUID(self, device: int) -> bytes:
        return b"GPU-1"

    def nvmlDeviceGetName(self, device: int) -> str:
        return "H100"

    def nvmlDeviceGetCudaComputeCapability(self, device: int) -> list[int]:
        return [9, 0]


def test_nvml_is_read_and_let_go():
    nvml = FakeNvml()
    assert accelerator._from_nvml(nvml) == [gpu(GIB, {4711: 300 * MIB, 4712: None})]
    assert nvml.closed


def test_no_driver_is_no_gpu_and_a_broken_one_is_an_error():
    assert accelerator._from_nvml(FakeNvml(init=FakeNvml.NVMLError_LibraryNotFound())) == []
    assert accelerator._from_nvml(FakeNvml(init=FakeNvml.NVMLError(FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED))) == []
    broken = FakeNvml(count=FakeNvml.NVMLError())
    for nvml in (broken, FakeNvml(init=FakeNvml.NVMLError())):
        with pytest.raises(Unavailable, match="the NVIDIA driver does not answer"):
            accelerator._from_nvml(nvml)
    assert broken.closed
