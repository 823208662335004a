"""bfloat16 only where the hardware computes in it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from leyden.models import device  # noqa: E402


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu avx2 avx512_bf16\n", True),
        ("processor\t: 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd sve_ebf16x\n", False),
        ("processor\t: 0\nflags\t\t: avx512_bf16\nprocessor\t: 1\nflags\t\t: avx2\n", False),
        ("", False),
    ],
)
def test_the_cpu_says_whether_it_has_bf16(tmp_path, monkeypatch, cpuinfo, fast):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")
    assert device.cpu_has_bf16() == fast
    assert device.compute_dtype("cpu") == (torch.bfloat16 if fast else torch.float32)


def test_a_machine_without_cpuinfo_and_mps_compute_in_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "nothing")
    assert device.compute_dtype("cpu") == device.compute_dtype("mps") == torch.float32
