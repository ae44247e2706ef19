"""Which settings all ranks of a run have in common, and which they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from hyrt.cli.rank_session import RankSession, common_settings
from hyrt.config import build_config
from hyrt.config.command_line import new_config
from hyrt.distributed.launch import LaunchInfo
from hyrt.errors import ConfigError
from hyrt.runtime.shutdown import StopSignals


@pytest.mark.parametrize(
    ("setting", "is_common"),
    [
        ("train.lr=0.5", True),
        ("distributed.shares=2,1", True),
        # Ranks that look ahead differently would divide the same step into other time steps.
        ("runtime.max_in_flight_steps=2", True),
        ("runtime.pipelined=false", True),
        ("runtime.train_threads=3", False),
        ("devices=cpu:0,cpu:1", False),
        ("evaluate.memory_gib=0.5", False),
        ("checkpoint.every_steps=7", False),
    ],
)
def test_a_setting_of_one_rank_alone(setting: str, is_common: bool) -> None:
    assert (common_settings(new_config(None, [setting])) != common_settings(build_config({}))) == is_common


def test_a_full_graph_refuses_what_is_said_of_rows_that_are_sent() -> None:
    def nobody(*args: Any) -> Any:
        raise AssertionError("the ranks are not joined")

    session = RankSession(
        config=new_config(None, ["sampler.kind=full", "distributed.shared_memory_features=false"]),
        launch=LaunchInfo(0, 2),
        signals=StopSignals(),
        progress=nobody,
        folder=nobody,
    )
    with pytest.raises(
        ConfigError, match=r"--full-graph does not support distributed\.shared_memory_features=False: remove"
    ) as told:
        session.run()
    assert told.value.peers_wait
