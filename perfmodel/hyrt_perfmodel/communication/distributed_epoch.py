"""Prediction of a distributed epoch: one rank's stages, including communication."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hyrt_perfmodel.communication.network import Network
from hyrt_perfmodel.communication.traffic import EDGES, ROWS, WEIGHT_PURPOSES, StepTraffic
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.extra_terms import ExtraTerms
from hyrt_perfmodel.prediction.initial_assignment import initial_assignment
from hyrt_perfmodel.prediction.stage_times import StageTimes, iteration_s, stage_times
from hyrt_perfmodel.workload import TrainingWorkload

# With these strategies, the load stage receives first-layer results computed by all ranks.
_JOINT_FIRST_LAYER = ("p3", "naive-migration")


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedPrediction:
    """Prediction of an epoch on several equal ranks."""

    strategy: str
    ranks: int
    network: str
    time_steps: int
    """Number of time steps into which a rank divides its work of a step."""
    stages_s: Mapping[str, float]
    """Seconds of a step's stages on one rank: `sample` and `load` include edges and rows from other ranks,
    `propagate` all other communication."""
    communication_s: Mapping[str, float]
    """Seconds of a step's communication per purpose."""
    iteration_s: float
    iterations: int
    epoch_s: float
    epoch_bytes: Mapping[str, float]
    """Bytes that all ranks together send per epoch, by purpose."""
    bottleneck: str
    """Stage that bounds the iteration, or `network` with the purpose that dominates this stage; `link` if the
    busiest link takes longer than every stage.
    """

    @property
    def total_bytes(self) -> float:
        return sum(self.epoch_bytes.values())

    def to_json(self) -> dict[str, Any]:
        """Return the content that `hyrt predict --ranks --json` prints."""
        names = (
            "strategy",
            "ranks",
            "network",
            "time_steps",
            "iteration_s",
            "iterations",
            "epoch_s",
            "bottleneck",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "stages_s": dict(self.stages_s),
            "travel_s": dict(self.communication_s),
            "epoch_bytes": {name: round(num_bytes) for name, num_bytes in self.epoch_bytes.items()},
        }


def predict_distributed(
    strategy: str,
    platform: Platform,
    training: TrainingWorkload,
    traffic: StepTraffic,
    network: Network,
    *,
    terms: ExtraTerms | None = None,
    assign: Callable[[TrainingWorkload], Assignment] | None = None,
    ranks_per_machine: int = 1,
) -> DistributedPrediction:
    """Predict an epoch on equal ranks that each train a part of every step.

    The load stage waits for rows from other ranks and sampling waits for their edges, overlapped with the
    stages of other steps; propagation waits for all other communication. No step is shorter than the time of
    its bytes on the busiest link. The last step of an epoch may have fewer targets, but gradients and models
    are sent in full.

    `platform` is the machine of one rank, whose cores `ranks_per_machine` ranks share; the batch size of
    `training` is that of a step over all ranks. `assign` returns a rank's assignment from its part of a step;
    by default the best one found is used. Raises ValueError if a part does not fit into the memory of the
    trainers.
    """
    terms = ExtraTerms() if terms is None else terms
    parts = traffic.ranks * traffic.time_steps
    largest_batch = traffic.largest_share * training.batch_size / parts
    # Fetched rows are aggregated after they arrive, and no device reads them in place.
    form = training.best_form
    if form == "in_place" or (form == "aggregated" and strategy in _JOINT_FIRST_LAYER):
        form = "rows"
    rank_training = replace(training, batch_size=max(1, round(largest_batch)), best_form=form)
    assignment = (
        initial_assignment(platform, rank_training, terms=terms) if assign is None else assign(rank_training)
    )
    alone = _repeated(stage_times(platform, rank_training, assignment, terms), traffic.time_steps)
    if alone.core_s is not None:
        alone = replace(alone, core_s=ranks_per_machine * alone.core_s)
    purpose_s = traffic.seconds_by_purpose(network)
    edges_s = purpose_s.get(EDGES, 0.0)
    weights_s = sum(purpose_s[name] for name in WEIGHT_PURPOSES)
    vectors_s = sum(purpose_s.values()) - purpose_s[ROWS] - edges_s - weights_s
    full_link_s = traffic.link_s(network)

    def link_of(fraction: float) -> float:
        """Return the seconds of the busiest link in a step with a fraction of the targets."""
        link_weights_s = min(weights_s, full_link_s)
        return link_weights_s + fraction * (full_link_s - link_weights_s)

    def stages_of(fraction: float) -> StageTimes:
        """Return the stages of a step with a fraction of the targets, including communication."""
        times = _partial_step(alone, fraction)
        inside_s = fraction * vectors_s + weights_s
        return replace(
            times,
            sample_s=times.sample_s + fraction * edges_s,
            load_s=times.load_s + fraction * purpose_s[ROWS],
            propagate_s=times.propagate_s + inside_s,
            synchronize_s=times.synchronize_s + inside_s,
        )

    def step_s(fraction: float) -> float:
        return max(iteration_s(stages_of(fraction), platform.host, terms), link_of(fraction))

    stages, link_s, seconds = stages_of(1.0), link_of(1.0), step_s(1.0)
    steps = training.targets_per_epoch / training.batch_size
    num_full, last = divmod(steps, 1.0)
    sent = traffic.bytes_by_purpose()
    return DistributedPrediction(
        strategy=strategy,
        ranks=traffic.ranks,
        network=network.name,
        time_steps=traffic.time_steps,
        stages_s=stages.stages_s,
        communication_s=purpose_s,
        iteration_s=seconds,
        iterations=math.ceil(steps),
        epoch_s=num_full * seconds + (step_s(last) if last else 0.0),
        epoch_bytes={
            name: (math.ceil(steps) if name in WEIGHT_PURPOSES else steps) * num for name, num in sent.items()
        },
        bottleneck=_bottleneck(stages, purpose_s, seconds, link_s),
    )


def _partial_step(times: StageTimes, fraction: float) -> StageTimes:
    """Return the stages of a step with a fraction of its targets; synchronization takes as long as before."""

    def scaled(seconds: float) -> float:
        return times.synchronize_s + fraction * (seconds - times.synchronize_s)

    def scaled_all(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(fraction * trainer_s for trainer_s in seconds)

    return replace(
        times,
        sample_s=fraction * times.sample_s,
        load_s=fraction * times.load_s,
        transfer_s=fraction * times.transfer_s,
        propagate_s=scaled(times.propagate_s),
        trainer_load_s=scaled_all(times.trainer_load_s),
        trainer_transfer_s=scaled_all(times.trainer_transfer_s),
        trainer_propagate_s=scaled_all(times.trainer_propagate_s),
        busy_s=scaled(times.busy_s) if times.busy_s else 0.0,
        core_s=None if times.core_s is None else scaled(times.core_s),
    )


def _repeated(times: StageTimes, count: int) -> StageTimes:
    """Return the stages of `count` equal parts in sequence, with one synchronization."""

    def repeated_all(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(count * trainer_s for trainer_s in seconds)

    extra_s = (count - 1) * (times.propagate_s - times.synchronize_s)
    extra_busy_s = (count - 1) * (times.busy_s - times.synchronize_s) if times.busy_s else 0.0
    extra_core_s = (count - 1) * ((times.core_s or 0.0) - times.synchronize_s)
    return replace(
        times,
        sample_s=count * times.sample_s,
        load_s=count * times.load_s,
        transfer_s=count * times.transfer_s,
        propagate_s=times.propagate_s + extra_s,
        trainer_load_s=repeated_all(times.trainer_load_s),
        trainer_transfer_s=repeated_all(times.trainer_transfer_s),
        trainer_propagate_s=repeated_all(times.trainer_propagate_s),
        busy_s=times.busy_s + extra_busy_s,
        core_s=None if times.core_s is None else times.core_s + extra_core_s,
    )


def _bottleneck(times: StageTimes, purpose_s: Mapping[str, float], seconds: float, link_s: float) -> str:
    if link_s >= seconds:
        return "link"
    stage = times.bottleneck
    purposes = {
        "sample": {EDGES: purpose_s.get(EDGES, 0.0)},
        "load": {ROWS: purpose_s[ROWS]},
        "propagate": {name: time_s for name, time_s in purpose_s.items() if name not in (EDGES, ROWS)},
    }.get(stage, {})
    largest = max(purposes, key=lambda name: purposes[name], default="")
    if 2 * sum(purposes.values()) > times.stages_s[stage]:
        return f"network ({largest})"
    return stage
