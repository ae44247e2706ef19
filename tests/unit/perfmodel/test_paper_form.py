"""`predict(paper=True)` against the published equations, written out here in plain arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.prediction.predict import predict
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

rates = st.floats(1, 1e3)
macs = st.floats(1e9, 1e13)
accelerators = st.builds(
    Accelerator,
    kind=st.sampled_from(["a", "b"]),
    memory_gb_s=rates,
    macs_per_s=macs,
    link_gb_s=rates,
    pipelined=st.booleans(),
    reads_each_source_once=st.booleans(),
    count=st.integers(1, 4),
    launch_s=st.just(1.0),
    flush_s=st.just(1.0),
    fill_s=st.just(1.0),
    link_latency_s=st.just(1.0),
)
platforms = st.builds(
    Platform,
    name=st.just("p"),
    host=st.builds(
        Host,
        memory_gb_s=rates,
        macs_per_s=macs,
        trains=st.booleans(),
        launch_s=st.just(1.0),
        step_s=st.just(1.0),
        values_per_s=st.just(1.0),
        cores=st.sampled_from([None, 2]),
        thread_load_gb_s=st.sampled_from([None, 1e-3]),
    ),
    accelerators=st.lists(accelerators, min_size=1, max_size=3).map(tuple),
)
counts = st.floats(1, 1e6)


@settings(max_examples=150, deadline=None)
@given(
    platforms,
    st.tuples(counts, counts, counts),
    st.tuples(counts, counts),
    st.tuples(*[st.integers(1, 512)] * 3),
    st.booleans(),
    st.sampled_from([2, 4]),
    st.integers(1, 10**7),
    st.integers(1, 4096),
    st.floats(0, 1),
)
def test_every_term(platform, vertices, edges, features, concat, size, targets, batch, sample_s) -> None:
    v0, v1, v2 = vertices
    e1, e2 = edges
    f0, f1, f2 = features
    work = Workload(vertices=vertices, edges=edges, features=features, concat=concat, bytes_per_value=size)
    training = TrainingWorkload(
        at=proportional_workload(work, batch),
        targets_per_epoch=targets,
        batch_size=batch,
        batch_per_trainer=batch,
        sample_s=sample_s,
    )
    wide = 2 if concat else 1
    count = sum(a.count for a in platform.accelerators) + platform.host.trains
    load = count * v0 * f0 * size / (platform.host.memory_gb_s * 1e9)
    transfer = max(v0 * f0 * size / (a.link_gb_s * 1e9) for a in platform.accelerators)
    weights = wide * f0 * f1 + wide * f1 * f2
    synchronize = 2 * weights * size / (min(a.link_gb_s for a in platform.accelerators) * 1e9)

    def trainer(memory_gb_s: float, rate: float, pipelined: bool, once: bool) -> float:
        agg1 = (v0 if once else e1) * f0 * size / (memory_gb_s * 1e9)
        agg2 = 0.0 if once else e2 * f1 * size / (memory_gb_s * 1e9)
        upd1, upd2 = v1 * wide * f0 * f1 / rate, v2 * wide * f1 * f2 / rate
        first, second = (max(agg1, upd1), max(agg2, upd2)) if pipelined else (agg1 + upd1, agg2 + upd2)
        return first + second + upd1 + second

    each = [
        trainer(a.memory_gb_s, a.macs_per_s, a.pipelined, a.reads_each_source_once)
        for a in platform.accelerators
    ]
    if platform.host.trains:
        each.append(trainer(platform.host.memory_gb_s, platform.host.macs_per_s, False, False))
    propagate = max(each) + synchronize
    execution = max(sample_s, load, transfer, propagate)

    found = predict(platform, training, paper=True).to_json()
    near = {"rel": 1e-9}
    assert found["stages_s"]["sample"] == pytest.approx(sample_s, **near)
    assert found["stages_s"]["load"] == pytest.approx(load, **near)
    assert found["stages_s"]["transfer"] == pytest.approx(transfer, **near)
    assert found["stages_s"]["propagate"] == pytest.approx(propagate, **near)
    assert found["stages_s"]["synchronize"] == pytest.approx(synchronize, **near)
    assert found["iteration_s"] == pytest.approx(execution, **near)
    assert found["iterations"] == math.ceil(targets / (count * batch))
    assert found["epoch_s"] == pytest.approx(found["iterations"] * execution, **near)
    assert found["throughput_mteps"] == pytest.approx(count * (e1 + e2) / execution / 1e6, **near)
    assert set(found["assignment"]["split"].values()) == {batch}
    stages = {name: found["stages_s"][name] for name in ("sample", "load", "transfer", "propagate")}
    assert stages[found["bottleneck"]] == max(stages.values())


def test_a_host_alone_sends_nothing() -> None:
    work = Workload(vertices=(100, 10), edges=(90,), features=(8, 4), concat=False)
    training = TrainingWorkload(
        at=proportional_workload(work, 10),
        targets_per_epoch=100,
        batch_size=10,
        batch_per_trainer=10,
        sample_s=0.0,
    )
    found = predict(Platform(name="p", host=Host(memory_gb_s=1, macs_per_s=1e9)), training, paper=True)
    assert found.stages_s["transfer"] == 0
    assert found.stages_s["synchronize"] == 0
    assert found.iterations == 10
