"""Predictions take the FPGA's kernels for what the device itself runs, and rates for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hyrt_devices.fpga.csim_device import FpgaCsimDevice
from hyrt_hls.arena_limits import with_task_targets
from hyrt_hls.resources import KernelDesign
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import advise, predict
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

from hyrt.config import Config
from hyrt.device import DeviceOptions
from hyrt.errors import ConfigError, UnsupportedModelError
from hyrt.predict.predict_platform import kernel_sentences, match_platform, select_designs, unsupported_reason
from hyrt.testing.cases import make_graph
from hyrt.training.setup import build_model

PLATFORM = load_platform("2x-epyc7763-4x-u250")
REFUSED: list[dict[str, Any]] = [
    {"aggregate": "max"},
    {"norm": "layer"},
    {"kind": "gcn", "residual": True},
    {"kind": "gin"},
    {"kind": "gat"},
    {"layers": 9},
]
RUN: list[dict[str, Any]] = [
    {},
    {"aggregate": "sum", "dropout": 0.5},
    {"kind": "gcn", "layers": 3},
    # It is between hidden layers, and there are none.
    {"residual": True, "layers": 1},
]


def config(model: dict[str, Any]) -> Config:
    return Config.model_validate({"model": model, "sampler": {"fanout": [3] * model.get("layers", 2)}})


@pytest.mark.skipif(
    bool(FpgaCsimDevice.missing()), reason=FpgaCsimDevice.missing() or "the compiler is there"
)
def test_the_rule_is_the_devices() -> None:
    (info,) = FpgaCsimDevice.probe()
    device = FpgaCsimDevice(
        info, DeviceOptions(), KernelDesign(pes=4, mac_rows=4, mac_cols=16, arena_words=448)
    )
    graph = make_graph(5, 3)
    try:
        for settings in (*REFUSED, *RUN):
            chosen = config(settings)
            model = build_model(chosen, graph)
            said = ""
            try:
                device.load(model, list(model.parameters()))
            except UnsupportedModelError as error:
                said = str(error).replace(info.name, "the FPGA trainer")
            assert unsupported_reason(chosen) == said
            assert bool(said) == (settings in REFUSED)
    finally:
        device.close()


def work(kind: str = "graphsage") -> TrainingWorkload:
    sizes = model_workload(kind, (160_000, 22_000, 1024), (210_000, 24_000), (100, 256, 47))
    return TrainingWorkload(
        at=proportional_workload(sizes, 1024), targets_per_epoch=100_000, batch_size=1024, model=kind
    )


def test_what_the_kernels_do_not_run_takes_rates_and_is_said() -> None:
    rates = replace(
        PLATFORM, accelerators=tuple(replace(each, design=None) for each in PLATFORM.accelerators)
    )
    machine, (said,) = select_designs(PLATFORM, work(), config({"aggregate": "max"}), paper=False)
    assert machine == rates
    assert "do not support this model on u250 (" in said
    assert "; the prediction uses rates" in said
    assert "aggregate='max'" in said
    # Sizes alone tell of two products a layer, and not of maxima.
    machine, (said,) = select_designs(PLATFORM, work("gin"), None, paper=False)
    assert machine == rates
    assert "one product per layer" in said
    assert select_designs(PLATFORM, work(), None, paper=False) == (PLATFORM, [])
    assert select_designs(PLATFORM, work(), config({}), paper=False) == (PLATFORM, [])
    # The paper's form knows no designs.
    assert select_designs(PLATFORM, work(), config({}), paper=True) == (rates, [])


@pytest.mark.parametrize("batch", [300, 4000])
def test_what_is_sent_is_said_beside_what_a_task_holds(batch: int) -> None:
    steps = replace(work(), batch_size=batch)
    machine = with_task_targets(PLATFORM, steps)
    now = predict(machine, steps)
    (said,) = kernel_sentences(machine, now)
    most = max(now.assignment.split[1:])
    room = machine.accelerators[0].task_targets
    assert room is not None
    tasks = -(-most // room)
    assert f"its {most} targets per step as {tasks} task{'s' * (tasks > 1)} (a task has up to {room})" in said
    (said,) = kernel_sentences(machine, now, "subgraph")
    assert f"its {most} x 1 subgraph per step as {tasks} task" in said
    assert (tasks > 1) == (batch == 4000)


def test_kernels_of_a_design_are_advised_to_take_fewer_bits_but_not_to_keep_rows() -> None:
    # Where links bind all, half the bytes are what helps most.
    slow = tuple(replace(each, link_gb_s=0.1) for each in PLATFORM.accelerators)
    for design in (PLATFORM.accelerators[0].design, None):
        machine = replace(
            PLATFORM,
            host=replace(PLATFORM.host, trains=False),
            accelerators=tuple(replace(each, design=design) for each in slow),
        )
        steps = replace(work(), hit_rate=lambda part: min(1.0, 5 * part))
        changes = [each.change for each in advise(machine, steps, predict(machine, steps), max_changes=99)]
        assert "features in 16 bits (data.feature_dtype=float16)" in changes
        assert "features in 8 bits (data.feature_dtype=int8)" in changes
        assert any("data.cache" in change for change in changes) == (design is None)
        assert "links twice as fast" in changes


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (
            {"kind": "cluster", "parts": 3},
            r"one group of parts of sampler.kind=cluster needs [\d,]+ words.*, but there are .*: "
            r"raise sampler.parts or lower sampler.parts_per_group, or use a sampler",
        ),
        ({"kind": "saint", "roots": 100_000}, r"one subgraph .*kind=saint needs.*: lower sampler.roots or"),
    ],
)
def test_a_unit_that_no_fpga_holds_is_named_with_what_makes_it_smaller(
    sampler: dict[str, Any], message: str
) -> None:
    whole = Workload(
        vertices=(1e6, 1e6, 1e6), edges=(1e7, 1e7), features=(128, 128, 16), concat=True, bytes_per_value=4
    )
    work = TrainingWorkload(at=proportional_workload(whole, 1), targets_per_epoch=1, batch_size=1)
    with pytest.raises(ConfigError, match=message):
        match_platform(PLATFORM, work, Config.model_validate({"sampler": sampler}))
    # Of targets, the fan-outs are what is too large.
    with pytest.raises(ValueError, match=r"one target needs .*: raise arena_words, or lower the fan-outs"):
        match_platform(PLATFORM, work, Config())
