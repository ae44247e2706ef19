"""Measuring between ranks whose clocks show known times."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from unit.distributed.ranks_in_threads import results_of

from hyrt.cli.calibrate import _network_file
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.process_group import RankGroup
from hyrt.errors import ConfigError
from hyrt.predict.calibrate import host as network

# 4 ms a message, 4 MB/s, and 70 % of that in exchanges; 1 ms of a core a message, and 40 s for 1e9 bytes.
LATENCY_S, RATE, PART = 4e-3, 4e6, 0.7
MESSAGE_S, BYTE_S = 1e-3, 4e-8


class RankClock(threading.local):
    """A clock for each rank, which runs only while something travels."""

    now_s = spent_s = 0.0

    def process_time(self) -> float:
        return self.spent_s

    def perf_counter(self) -> float:
        return self.now_s


class TimedGroup:
    """A group whose operations take what the terms say of this rank's own bytes."""

    def __init__(self, group: RankGroup, clock: RankClock) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size
        self._clock = clock

    def all_reduce(self, tensor: torch.Tensor, purpose: str) -> None:
        self.group.all_reduce(tensor, purpose)
        moved = 2 * (self.size - 1) / self.size * tensor.nbytes
        self._clock.now_s += 2 * (self.size - 1) * LATENCY_S + moved / RATE
        self._clock.spent_s += 2 * (self.size - 1) * MESSAGE_S + moved * BYTE_S

    def all_to_all(
        self,
        given: torch.Tensor,
        given_counts: Sequence[int],
        taken: torch.Tensor,
        taken_counts: Sequence[int],
        purpose: str,
    ) -> None:
        self.group.all_to_all(given, given_counts, taken, taken_counts, purpose)
        moved = max(given.nbytes, taken.nbytes)
        self._clock.now_s += (self.size - 1) * LATENCY_S + moved / (PART * RATE)
        self._clock.spent_s += (self.size - 1) * MESSAGE_S + (given.nbytes + taken.nbytes) / 2 * BYTE_S


def test_known_times_give_their_latency_and_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = RankClock()
    monkeypatch.setattr(network, "time", clock)

    def measured(ranks: DistributedContext) -> Any:
        timed = SimpleNamespace(
            size=ranks.size,
            control=ranks.control,
            group=lambda name: TimedGroup(ranks.group(name), clock),
        )
        return network.measure_network(cast(DistributedContext, timed), "slow")

    found = results_of(3, measured)
    assert found[0] == found[1] == found[2]
    assert "between 3 ranks on one machine with gloo" in found[0].network.source
    # Small operations have a few bytes, too.
    assert found[0].network.latency_s == pytest.approx(LATENCY_S, rel=0.02)
    assert found[0].network.gb_s == pytest.approx(RATE / 1e9, rel=0.01)
    assert found[0].network.uneven_part == pytest.approx(PART, rel=0.01)
    assert found[0].network.message_core_s == pytest.approx(MESSAGE_S, rel=0.02)
    assert found[0].network.gb_core_s == pytest.approx(1e9 * BYTE_S, rel=0.02)
    assert found[0].network.machines == 1
    assert found[0].errors.keys() == {"all-reduces", "exchanges", "uneven exchanges"}
    assert max(found[0].errors.values()) < 0.02


def test_only_a_network_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "lan.yaml"
    assert _network_file(file) == file
    file.write_text("latency_s: 1.0e-5\ngb_s: 2\n", encoding="utf-8")
    assert _network_file(file) == file
    file.write_text("of: mine\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists and is not a network file: choose another --network"):
        _network_file(file)
    with pytest.raises(ConfigError, match=r"must end in \.yaml"):
        _network_file(tmp_path / "lan")
    with pytest.raises(ConfigError, match="does not exist: create this folder, or choose another --network"):
        _network_file(tmp_path / "none" / "lan.yaml")
