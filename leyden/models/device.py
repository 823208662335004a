"""Where a model runs and in which precision: one rule for the engine and for training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the first two are x86's names, the last is Arm's


def pick_device() -> str:
    """``"cuda"``, ``"mps"`` or ``"cpu"``: the fastest there is."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def compute_dtype(device: str) -> torch.dtype:
    """bfloat16 where the hardware computes in it, else float32: emulated bf16 is 2 to 5 times slower than float32 on a CPU."""
    import torch

    on_gpu = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    on_cpu = device == "cpu" and cpu_has_bf16()
    return torch.bfloat16 if on_gpu or on_cpu else torch.float32


def cpu_has_bf16() -> bool:
    """Whether every core says so; where there is no ``/proc/cpuinfo`` (macOS, Windows) the answer is no."""
    if not CPUINFO.exists():
        return False
    lines = [line.partition(":") for line in CPUINFO.read_text().splitlines()]
    cores = [set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")]
    return bool(cores) and all(_BF16_FLAGS & flags for flags in cores)
