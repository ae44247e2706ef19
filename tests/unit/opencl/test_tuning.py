"""Kernels are cut for the registers that code is generated for."""

from __future__ import annotations

import sys

import pytest
import torch
from hyrt_devices.opencl.programs import CPUS, GPU, tuning_of
from opencl_doubles import Device, module


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", module([]))


@pytest.mark.parametrize(("capability", "vector"), [("AVX512", 16), ("AVX2", 8), ("DEFAULT", 4), ("VSX", 4)])
def test_a_cpu_is_cut_by_what_it_can_do(
    monkeypatch: pytest.MonkeyPatch, capability: str, vector: int
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert tuning_of(Device("C")) is CPUS[vector]
    # A compiler that does not know the CPU uses the registers every one has.
    assert tuning_of(Device("C", version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-generic")) is CPUS[4]
    assert tuning_of(Device("G", type=4)) is GPU


def test_the_cuts_fit_their_kernels() -> None:
    for vector, tuning in CPUS.items():
        assert tuning.vector == vector
        assert tuning.panel == 2 * vector
        assert tuning.product_grain % tuning.product_rows == 0
        # Results are the same on every CPU but for the order within a vector's columns, which is none.
        assert tuning.weight_chunk == CPUS[16].weight_chunk
