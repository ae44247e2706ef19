"""What is particular to the trainers on the host; what all trainers owe is in the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from hyrt_devices import null
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.host_staged import HostStaged

from hyrt.device import DeviceOptions
from hyrt.device.discovery import find_device
from hyrt.errors import ArgumentError, ConfigError, DeviceUnavailableError
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.runtime.hardware import available_cores, vector_instructions
from hyrt.testing.cases import edgeless_batch


def test_the_cpu_is_described() -> None:
    first, *others = CpuDevice.probe()
    assert first.description.startswith(f"{available_cores()} cores")
    assert first.host_cores == available_cores()
    assert first.zero_copy
    # Several trainers may share one machine's cores.
    assert others
    assert all(other.description == first.description for other in others)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flags\t\t: fpu sse2 avx2 avx512f avx512_bf16\nflags\t\t: fpu\n", ["AVX-512", "bf16"]),
        ("flags : avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n", ["AVX-512", "AMX bf16"]),
        ("model name : avx512f\nflags : sse2 avx2\n", ["AVX2"]),
        ("Features\t: fp asimd sve bf16\n", ["SVE", "bf16"]),
        ("Features\t: fp asimd\n", ["NEON"]),
        ("flags : sse2\n", []),
        ("", []),
    ],
)
def test_vector_instructions_are_read(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert vector_instructions(tmp_path / "cpuinfo") == found


def test_no_list_of_features() -> None:
    assert vector_instructions(Path("/no/such/file")) == []


def test_the_null_device_is_short() -> None:
    assert len(Path(null.__file__).read_text().splitlines()) < 60


@pytest.mark.parametrize("name", ["cpu:0", "opencl:0", "fpga-csim:0"])
def test_weights_of_other_shapes_are_refused_and_the_device_goes_on(name: str) -> None:
    try:
        backend, info = find_device(name)
        device = backend.open(info, DeviceOptions())
    except (DeviceUnavailableError, ConfigError) as error:
        pytest.skip(str(error))
    model = GNN(Architecture(kind="gcn", in_features=5, hidden=4, num_classes=3))
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        device.load(model, list(model.parameters()))
        for wrong in (weights[:-1], [weights[0].T, *weights[1:]], [weights[0][:1, :1], *weights[1:]], None):
            with pytest.raises(ArgumentError, match=r"^parameters.*: pass a (list|tensor) of"):
                device.update(wrong)  # type: ignore[arg-type]
        device.update(weights)
    finally:
        device.close()


def test_a_mini_batch_may_be_staged_twice_but_each_is_taken_once() -> None:
    batch, staging = edgeless_batch(3, 2, 1), HostStaged()
    first, second = staging.put(batch), staging.put(batch)
    assert first is not second
    assert first.inputs is batch.inputs
    assert staging.take(second) is second
    assert staging.take(first) is first
    for wrong in (first, batch, None, staging):
        with pytest.raises(TypeError, match="expected a mini-batch from transfer"):
            staging.take(wrong)  # type: ignore[arg-type]
    third = staging.put(batch)
    staging.clear()
    with pytest.raises(TypeError, match="expected a mini-batch"):
        staging.take(third)
