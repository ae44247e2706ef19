"""Every backend passes the public suite."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from device.unusual_devices import GatheringDevice, LimitedDevice, SamplingDevice
from hyrt_devices.cpu import CpuDevice

from hyrt.device import Device, DeviceOptions, StepResult
from hyrt.device.discovery import survey_devices
from hyrt.errors import DeviceUnavailableError
from hyrt.nn.hetero.inputs import HeteroInput
from hyrt.testing import ConformanceError, Report, check_device
from hyrt.testing.__main__ import main

INFO = CpuDevice.probe()[0]
# Several of these are one and the same device.
COPIES = ("cpu", "null")
# What a backend may take besides rows.
FORMS = ("quantized", "sparse", "aggregated", "in_place", "ids", "cached")


def there() -> list[tuple[str, str]]:
    """Names of all devices, with the reason where a kind has none."""
    found = []
    for survey in survey_devices():
        infos = survey.found[:1] if survey.kind in COPIES else survey.found
        found += [(info.name, "") for info in infos] or [(survey.kind, survey.problem)]
    return found


@pytest.mark.limit(500)
@pytest.mark.parametrize(("name", "problem"), there(), ids=lambda value: value if ":" in value else None)
def test_every_device_conforms(name: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    if problem:
        pytest.skip(f"{name}: {problem}")
    nothing = ["--computes-nothing"] if name.startswith("null") else []
    # Opening some devices takes half a second: 200 times are for who writes one, and test_opencl.py opens its
    # own 50 times.
    cycles = "20" if name.startswith("opencl") else "50"
    code = main([name, "--cycles", cycles, *nothing])
    told = capsys.readouterr()
    assert code == 0, told.out + told.err
    assert " 0 failed" in told.out.splitlines()[-1]


def _break(device: Device) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the bus is off")

    device._step = fail  # type: ignore[attr-defined]


def checked(kind: type[CpuDevice], **more: object) -> Report:
    def opened(options: DeviceOptions) -> CpuDevice:
        return kind(INFO, options)

    return check_device(opened, cycles=5, **more)  # type: ignore[arg-type]


def test_a_device_that_can_be_broken() -> None:
    report = checked(CpuDevice, break_next=_break, only="fault")
    assert "a broken device faults for good" in {verdict.name for verdict in report.passed}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (LimitedDevice, {"out of memory is recoverable"}),
        (GatheringDevice, {"input form ids gives the same sums"}),
        (
            SamplingDevice,
            {
                "sampler matches the host",
                "mini batches it sampled are trained",
                "sampler draws while the device trains",
                "the sampler may outlive the device",
            },
        ),
    ],
)
def test_what_the_cpu_cannot_do_is_checked_too(kind: type[CpuDevice], names: set[str]) -> None:
    """Devices with a memory of their own, that gather rows, that sample: each passes what the CPU skips.

    All checks pass on devices that do these things in `test_every_device_conforms` and, gathering rows, in
    test_cuda_conformance.py.
    """
    for name in names:
        assert [verdict.name for verdict in checked(kind, only=name).passed] == [name]
        assert [verdict.name for verdict in checked(CpuDevice, only=name).skipped] == [name]


def test_a_device_that_is_not_there_is_not_checked() -> None:
    def opened(options: DeviceOptions) -> Device:
        raise DeviceUnavailableError("npu:0 is not available: plug it in")

    with pytest.raises(DeviceUnavailableError, match="plug it in"):
        check_device(opened)


def test_the_report_has_a_line_for_each_check() -> None:
    heard: list[object] = []
    report = checked(CpuDevice, only="sampler", on_verdict=heard.append)
    assert heard == list(report.verdicts)
    first, *lines = str(report).splitlines()
    assert first == f"{INFO.name} ({INFO.description}): 0 passed, 3 skipped, 0 failed"
    assert lines[0] == "  skipped  sampler matches the host: it does not sample"


def test_the_error_lists_every_failed_check() -> None:
    class Plain(CpuDevice):
        propagate = partial  # Not even a method of the protocol.

    with pytest.raises(ConformanceError) as error:
        checked(Plain)
    failed = error.value.report.failed
    assert len(failed) > 20
    text = str(error.value)
    assert f"{len(failed)} of {len(error.value.report.verdicts)} checks failed" in text
    assert all(verdict.name in text and verdict.detail in text for verdict in failed)
    # What is wrong is said once, however many checks it fails.
    assert len(text.splitlines()) == 1 + len({verdict.detail for verdict in failed})


def test_the_backend_of_the_documentation_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    section = page.partition("## Torch device example\n")[2].partition("\n## ")[0]
    code = [line for line in section.splitlines() if line.startswith("    ") or not line]
    (tmp_path / "documented_backend.py").write_text(textwrap.dedent("\n".join(code)))
    monkeypatch.syspath_prepend(str(tmp_path))
    npu = importlib.import_module("documented_backend").NpuDevice
    report = check_device(lambda options: npu.open(npu.probe()[0], options), cycles=5)
    assert {verdict.name for verdict in report.skipped} <= {
        *(f"input form {form} gives the same sums" for form in FORMS),
        "heterogeneous mini batches match dense float64",
        "parts of a heterogeneous step add up to the whole",
        "sampler matches the host",
        "mini batches it sampled are trained",
        "sampler draws while the device trains",
        "the sampler may outlive the device",
        "a broken device faults for good",
        "a full graph in chunks is a step",
        "streamed gradients equal the result",
        "a budget of host memory changes no bit",
        "out of memory is recoverable",
    }


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "as a fault"])
def test_an_exception_is_told_with_the_backends_own_line(wrapped: bool) -> None:
    class Raising(CpuDevice):
        def propagate(self, staged: Any) -> Any:
            if not wrapped:
                return self.broken()
            with self._health.terminal("propagate"):
                return self.broken()

        def broken(self) -> Any:
            return torch.ones(2) @ torch.ones(3)  # This line.

    with pytest.raises(ConformanceError) as error:
        checked(Raising, only="normalizer")
    (failed,) = error.value.report.failed
    (line,) = [
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# This line.")
    ]
    assert failed.detail.endswith(f"at {__file__}:{line} in broken")
    assert len(failed.detail.splitlines()) == 1


def test_a_missing_gradient_is_told_without_tensors() -> None:
    class Forgetful(CpuDevice):
        def _step(self, model: Any, batch: Any) -> StepResult:
            result = super()._step(model, batch)
            return replace(result, gradients=[None, *result.gradients[1:]])  # type: ignore[list-item]

    with pytest.raises(ConformanceError) as error:
        checked(Forgetful, only="normalizer")
    text = str(error.value)
    assert "expected gradient 0 to be a tensor (zeros if" in text
    assert "it is NoneType" in text
    assert "tensor(" not in text


def test_the_largest_difference_is_told_with_its_place() -> None:
    class OneElementOff(CpuDevice):
        def _step(self, model: Any, batch: Any) -> StepResult:
            result = super()._step(model, batch)
            if result.counts:
                result.gradients[0][1, 0] += 7
                result.gradients[0][0, 0] += 2
            return result

    with pytest.raises(ConformanceError, match=r"gradient 0 \(layers.0.weight\) within .*") as error:
        checked(OneElementOff, only="float64: gcn, layers=1")
    assert re.search(
        r"the largest difference is 7\.0e\+00, at \[1, 0\]: \S+ instead of \S+ \(sampled neighbours\)",
        str(error.value),
    )


def _without_learned_rows(result: StepResult) -> StepResult:
    return replace(result, row_gradients=[])


def _with_wrong_learned_rows(result: StepResult) -> StepResult:
    (rows,) = result.row_gradients
    return replace(result, row_gradients=[replace(rows, values=rows.values * 1.01)])


def _with_a_wrong_gradient(result: StepResult) -> StepResult:
    return replace(result, gradients=[*result.gradients[:-1], result.gradients[-1] * 1.01])


def _with_more_loss(result: StepResult) -> StepResult:
    return replace(result, loss_sum=result.loss_sum + 0.1)


def _with_more_counts(result: StepResult) -> StepResult:
    return replace(result, counts={name: count + 1 for name, count in result.counts.items()})


def _with_more_of_a_gradient(result: StepResult) -> StepResult:
    return replace(result, gradients=[*result.gradients[:-1], result.gradients[-1] + 0.1])


def _with_a_part_drawn(result: StepResult) -> StepResult:
    return replace(result, loss_sum=result.loss_sum + 1e-9 * torch.rand(1, dtype=torch.float64).item())


SUMS, PARTS = "heterogeneous mini batches", "parts of a heterogeneous step"


@pytest.mark.parametrize(
    ("spoilt", "check", "told"),
    [
        (_without_learned_rows, SUMS, r"row gradients of one embedding table; got 0 \(rgcn\)"),
        (_with_wrong_learned_rows, SUMS, "the gradient of the embedding table within"),
        (_with_a_wrong_gradient, SUMS, r"the gradient of \S+ within"),
        (_with_more_loss, SUMS, "the loss sum"),
        (_with_more_loss, PARTS, "the parts' losses to add up"),
        (_with_more_counts, PARTS, "the parts' counts to add up"),
        (_with_more_of_a_gradient, PARTS, r"gradient \d+ of the parts to add up"),
        (_with_a_part_drawn, PARTS, "in a repeated heterogeneous step"),
    ],
)
def test_wrong_sums_of_typed_steps_are_told(
    spoilt: Callable[[StepResult], StepResult], check: str, told: str
) -> None:
    class Wrong(CpuDevice):
        def _step(self, model: Any, batch: Any) -> StepResult:
            result = super()._step(model, batch)
            return spoilt(result) if isinstance(batch.inputs, HeteroInput) else result

    with pytest.raises(ConformanceError, match=told):
        checked(Wrong, only=check)


def test_no_check_of_that_name() -> None:
    with pytest.raises(ValueError, match="no check has 'flight recorder'"):
        checked(CpuDevice, only="flight recorder")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cpu:0", "--only", "info"], 0, "passed   info describes the device"),
        (["null", "--only", "float64: gcn"], 1, "FAILED   sums agree with float64: gcn"),
        (["cpu:1000"], 2, "cpu:1000 is not available"),
    ],
)
def test_the_command(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    run: Callable[[list[str]], int] = main
    assert run(words) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
