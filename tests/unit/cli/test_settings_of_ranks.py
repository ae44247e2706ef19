"""Which settings all ranks of a run have in common."""

from __future__ import annotations

import pytest

from hyrt.cli.sessions.rank_session import common_settings
from hyrt.config import build_config
from hyrt.config.command_line import new_config


@pytest.mark.parametrize(
    ("setting", "is_common"),
    [
        ("train.lr=0.5", True),
        ("distributed.shares=2,1", True),
        # Ranks that look ahead differently would divide the same step into other time steps.
        ("runtime.depth=2", True),
        ("runtime.pipelined=false", True),
        ("runtime.train_threads=3", False),
        ("devices=cpu:0,cpu:1", False),
        ("evaluate.memory_gib=0.5", False),
        ("checkpoint.every_steps=7", False),
    ],
)
def test_a_setting_of_one_rank_alone(setting: str, is_common: bool) -> None:
    assert (common_settings(new_config(None, [setting])) != common_settings(build_config({}))) == is_common
