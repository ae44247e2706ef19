"""HYRT_FAULT: read strictly, off unless it is set, and said by the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from graphs import random_graph

from hyrt.config import build_config
from hyrt.device import Device
from hyrt.errors import ConfigError, StageError
from hyrt.telemetry.events import Notice, RunEnded
from hyrt.telemetry.faults import ENV_VARIABLE, Fault, FaultInjectionHook, parse_faults
from hyrt.telemetry.hooks import Site
from hyrt.telemetry.run_hooks import hooks_from_environment
from hyrt.training.build_run import build_run
from hyrt.training.train import Training


def training(**more: Any) -> tuple[Training, list[Any]]:
    events: list[Any] = []
    settings = {
        "data": {"batch_size": 50},
        "sampler": {"fanout": [3, 3]},
        "model": {"hidden": 8},
        "train": {"epochs": 2},
        "balance": {"policy": "static", "predict": False},
    }
    run = Training(
        build_run(
            build_config(settings),
            random_graph(),
            emit=events.append,
            hooks=hooks_from_environment(),
            **more,
        )
    )
    return run, events


def test_what_is_asked_for() -> None:
    first, second = parse_faults("propagate:opencl:0:middle:hang, checkpoint:replace:3+:enospc")
    assert first == Fault("propagate", "opencl:0", "middle", "hang")
    assert (first.first_step(20), first.is_persistent) == (10, False)
    assert (second.place, second.first_step(20), second.is_persistent) == ("replace", 3, True)
    assert [Fault("load", "*", when, "raise").first_step(20) for when in ("first", "last")] == [0, 19]
    (third,) = parse_faults("load:rank12.opencl:0:4:kill")
    assert third == Fault("load", "opencl:0", "4", "kill", rank=12)
    assert str(third) == "load:rank12.opencl:0:4:kill"
    assert str(first) == "propagate:opencl:0:middle:hang"
    # A checkpoint is of steps that are done.
    assert Fault("checkpoint", "*", "last", "eio").first_step(20) == 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"'' must have the form <stage>"),
        ("propagate:cpu:0", "must have the form <stage>"),
        ("sampel:cpu:0:first:raise", "the stage of .* must be one of sample"),
        ("sample:cpu:0:later:raise", "must be first, middle, last or a step number"),
        ("sample:cpu:0:-1:raise", "must be first, middle, last or a step number"),
        ("sample:cpu:0:first:rise", "the kind of .* must be one of raise"),
        ("sample:cpu:0:first:oom", "must name the stage transfer or propagate, which can have oom"),
        ("load:cpu:0:first:nan-loss", "must name the stage propagate, which can have nan-loss"),
        ("checkpoint:rename:first:eio", "the place of .* must be one of open"),
        ("synchronize:cpu:0:first:raise", "must be host, because synchronize runs"),
        ("evaluate:rank1.cpu:0:first:raise", "must be host, because evaluate runs"),
        ("checkpoint:rank1.write:first:eio", "only rank 0 writes checkpoints"),
        ("sample:cpu:0:first:raise,", r"'' must have the form <stage>"),
    ],
)
def test_what_cannot_be_read(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_faults(text)


def test_once_or_from_then_on() -> None:
    faults = FaultInjectionHook(parse_faults("load:cpu:0:4:raise,load:cpu:1:4+:raise"))
    devices = cast(list[Device], [SimpleNamespace(info=SimpleNamespace(name=f"cpu:{i}")) for i in range(2)])
    faults.on_start(devices, range(20))

    def happens(stage: str, place: str, step: int) -> bool:
        try:
            return faults.wrap_call(stage, Site(place, step), lambda: False)
        except RuntimeError:
            return True

    assert [happens("load", "cpu:0", step) for step in (3, 4, 5)] == [False, True, False]
    assert [happens("load", "cpu:1", step) for step in (3, 4, 5)] == [False, True, True]
    assert not happens("sample", "cpu:0", 9)


def test_a_fault_of_one_rank_happens_there_alone() -> None:
    devices = cast(list[Device], [SimpleNamespace(info=SimpleNamespace(name="cpu:0"))])
    wanted = parse_faults("load:rank1.*:2:raise,sample:cpu:0:2:raise")

    def happens(rank: int, stage: str) -> bool:
        faults = FaultInjectionHook(wanted, rank, 3)
        # All ranks say it: the run as a whole is a test.
        assert "load:rank1.*:2:raise, sample:cpu:0:2:raise" in faults.on_start(devices, range(20)).text
        try:
            return faults.wrap_call(stage, Site("cpu:0", 2), lambda: False)
        except RuntimeError:
            return True

    assert [happens(rank, "load") for rank in range(3)] == [False, True, False]
    assert [happens(rank, "sample") for rank in range(3)] == [True, True, True]
    with pytest.raises(
        ConfigError, match=r"'load:rank1\.\*:2:raise' does not exist, because the run has 1 rank, numbered"
    ):
        FaultInjectionHook(wanted).on_start(devices, range(20))


def test_who_asks_for_none_imports_none() -> None:
    code = (
        "import sys, hyrt.api, hyrt.cli.run_session\n"
        "from hyrt.telemetry.run_hooks import hooks_from_environment\n"
        "assert hooks_from_environment() == []\n"
        "print([name for name in sys.modules if 'fault' in name.rpartition('.')[2] and 'hyrt' in name])"
    )
    without = {name: value for name, value in os.environ.items() if name != ENV_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=without, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VARIABLE, raising=False)
    assert hooks_from_environment() == []
    monkeypatch.setenv(ENV_VARIABLE, "")
    assert hooks_from_environment() == []
    run, events = training()
    run.run()
    assert not [event for event in events if isinstance(event, Notice) and "faults" in event.text]
    assert "faults" not in events[-1].summary


def test_loud_when_used(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(ENV_VARIABLE, "propagate:cpu:0:2+:slow,load:*:3:raise")
    run, events = training()
    with pytest.raises(StageError, match="injected in load on cpu:0 at step 3"):
        run.run()
    said = [event.text for event in events if isinstance(event, Notice) and event.kind == "warning"]
    assert any("HYRT_FAULT=propagate:cpu:0:2+:slow, load:*:3:raise" in text for text in said)
    assert "fault injected at" in capfd.readouterr().err
    monkeypatch.setenv(ENV_VARIABLE, "propagate:cpu:0:last:slow")
    run, events = training()
    run.run()
    assert isinstance(events[-1], RunEnded)
    assert "faults are injected" in events[-1].summary["faults"]


def test_a_fault_whose_step_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VARIABLE, "load:cpu:0:99999:raise,load:cpu:0:first+:slow")
    run, events = training()
    run.run()
    told = [event.text for event in events if isinstance(event, Notice)]
    assert "an injected fault did not happen: load:cpu:0:99999:raise" in told
    assert events[-1].summary["faults"].endswith("it is a test; did not happen: load:cpu:0:99999:raise")


def test_a_trainer_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VARIABLE, "load:cpu:7:first:raise")
    run, _ = training()
    with pytest.raises(
        ConfigError, match="'cpu:7', the place of load, is not a trainer of this run: choose one of cpu:0"
    ):
        run.run()


def test_words_that_cannot_be_read_end_the_run_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_VARIABLE, "nonsense")
    with pytest.raises(ConfigError, match="HYRT_FAULT: 'nonsense'"):
        training(checkpoints=tmp_path)
    assert not list(tmp_path.iterdir())
