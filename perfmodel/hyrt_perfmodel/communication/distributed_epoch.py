"""Predicting an epoch on several ranks: one rank's stages, with what travels between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.communication.network import Network
from hyrt_perfmodel.communication.step_traffic import EDGES, OF_WEIGHTS, ROWS, StepTraffic
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.stage_times import StageTimes, iteration_s, stage_times
from hyrt_perfmodel.workloads.workload import TrainingWorkload

# Of these, a rank's load stage gets what all ranks have made of rows.
_FIRST_LAYER_TOGETHER = ("p3", "naive-migration")


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksPrediction:
    """What an epoch takes on several equal ranks."""

    strategy: str
    ranks: int
    network: str
    """`strategy`, `ranks` and `network`: what was predicted."""
    time_steps: int
    """The parts into which a rank cuts its work of a step."""
    stages_s: Mapping[str, float]
    """A step's stages on one rank: `sample` and `load` with the edges and rows of other ranks, `propagate`
    with all else that travels."""
    travel_s: Mapping[str, float]
    """Seconds of a step's communication by purpose."""
    iteration_s: float
    iterations: int
    epoch_s: float
    """`iteration_s`, `iterations` and `epoch_s`: a step, steps an epoch, and the epoch."""
    epoch_bytes: Mapping[str, float]
    """What all ranks together send in an epoch, by purpose."""
    bottleneck: str
    """The stage that bounds the iteration, or `network` with the purpose that takes most of that stage;
    `link` where the link is busy longer than any stage takes."""

    @property
    def total_bytes(self) -> float:
        """What all ranks together send in an epoch."""
        return sum(self.epoch_bytes.values())

    def to_json(self) -> dict[str, Any]:
        """As `hyrt predict --ranks --json` prints it."""
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
            "travel_s": dict(self.travel_s),
            "epoch_bytes": {name: round(num_bytes) for name, num_bytes in self.epoch_bytes.items()},
        }


def predict_ranks(
    strategy: str,
    platform: Platform,
    training: TrainingWorkload,
    traffic: StepTraffic,
    network: Network,
    *,
    terms: Terms | None = None,
    assign: Callable[[TrainingWorkload], Assignment] | None = None,
    ranks_of_machine: int = 1,
) -> RanksPrediction:
    """Predict an epoch on equal ranks that each train a part of every step.

    The rows of other ranks are waited for in the load stage, and their edges while sampling, beside the
    stages of other steps; everything else that travels is waited for while propagating. No step is shorter
    than its bytes take on the busiest link. The last step of an epoch may have fewer targets, but gradients
    and models are sent in full.

    Parameters
    ----------
    strategy
        Its name, for the result.
    platform
        The machine of one rank.
    training
        The work; its batch is that of a step over all ranks.
    traffic
        What travels in a step.
    network
        The network.
    terms
        Beyond the paper's; all of them by default. `overlap` says what the pipeline does at the same time.
    assign
        Gives the assignment of a rank, from its part of a step; the best that is found by default.
    ranks_of_machine
        How many ranks share the cores of the platform.

    Raises
    ------
    ValueError
        If a rank's part of a step does not fit into its trainers' memories.
    """
    terms = Terms() if terms is None else terms
    parts = traffic.ranks * traffic.time_steps
    most = traffic.largest_share * training.batch_size / parts
    # Fetched rows are aggregated where they are, but no device reads them in place.
    form = training.best_form
    if form == "in_place" or (form == "aggregated" and strategy in _FIRST_LAYER_TOGETHER):
        form = "rows"
    of_part = replace(training, batch_size=max(1, round(most)), best_form=form)
    assignment = initial_assignment(platform, of_part, terms=terms) if assign is None else assign(of_part)
    alone = _repeated(stage_times(platform, of_part, assignment, terms), traffic.time_steps)
    if alone.core_s is not None:
        alone = replace(alone, core_s=ranks_of_machine * alone.core_s)
    travel_s = traffic.seconds_by_purpose(network)
    edges_s = travel_s.get(EDGES, 0.0)
    weights_s = sum(travel_s[name] for name in OF_WEIGHTS)
    vectors_s = sum(travel_s.values()) - travel_s[ROWS] - edges_s - weights_s
    full_link_s = traffic.link_s(network)

    def link_of(part: float) -> float:
        """Seconds of the busiest link in a step with a part of the targets."""
        of_weights = min(weights_s, full_link_s)
        return of_weights + part * (full_link_s - of_weights)

    def stages_of(part: float) -> StageTimes:
        """The stages of a step with a part of the targets, with what travels in them."""
        times = _of_part(alone, part)
        inside_s = part * vectors_s + weights_s
        return replace(
            times,
            sample_s=times.sample_s + part * edges_s,
            load_s=times.load_s + part * travel_s[ROWS],
            propagate_s=times.propagate_s + inside_s,
            synchronize_s=times.synchronize_s + inside_s,
        )

    def step_s(part: float) -> float:
        return max(iteration_s(stages_of(part), platform.host, terms), link_of(part))

    together, link_s, seconds = stages_of(1.0), link_of(1.0), step_s(1.0)
    steps = training.targets_per_epoch / training.batch_size
    whole, last = divmod(steps, 1.0)
    sent = traffic.bytes_by_purpose()
    return RanksPrediction(
        strategy=strategy,
        ranks=traffic.ranks,
        network=network.name,
        time_steps=traffic.time_steps,
        stages_s=together.stages_s,
        travel_s=travel_s,
        iteration_s=seconds,
        iterations=math.ceil(steps),
        epoch_s=whole * seconds + (step_s(last) if last else 0.0),
        epoch_bytes={
            name: (math.ceil(steps) if name in OF_WEIGHTS else steps) * num for name, num in sent.items()
        },
        bottleneck=_bottleneck(together, travel_s, seconds, link_s),
    )


def _of_part(times: StageTimes, part: float) -> StageTimes:
    """Return the stages of a step with a part of its targets; its synchronization takes as long."""

    def shorter(seconds: float) -> float:
        return times.synchronize_s + part * (seconds - times.synchronize_s)

    def each(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(part * one for one in seconds)

    return replace(
        times,
        sample_s=part * times.sample_s,
        load_s=part * times.load_s,
        transfer_s=part * times.transfer_s,
        propagate_s=shorter(times.propagate_s),
        trainer_load_s=each(times.trainer_load_s),
        trainer_transfer_s=each(times.trainer_transfer_s),
        trainer_propagate_s=each(times.trainer_propagate_s),
        busy_s=shorter(times.busy_s) if times.busy_s else 0.0,
        core_s=None if times.core_s is None else shorter(times.core_s),
    )


def _repeated(times: StageTimes, count: int) -> StageTimes:
    """Of as many equal parts one after the other, with one synchronization."""

    def each(seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(count * part for part in seconds)

    again_s = (count - 1) * (times.propagate_s - times.synchronize_s)
    again_busy_s = (count - 1) * (times.busy_s - times.synchronize_s) if times.busy_s else 0.0
    again_core_s = (count - 1) * ((times.core_s or 0.0) - times.synchronize_s)
    return replace(
        times,
        sample_s=count * times.sample_s,
        load_s=count * times.load_s,
        transfer_s=count * times.transfer_s,
        propagate_s=times.propagate_s + again_s,
        trainer_load_s=each(times.trainer_load_s),
        trainer_transfer_s=each(times.trainer_transfer_s),
        trainer_propagate_s=each(times.trainer_propagate_s),
        busy_s=times.busy_s + again_busy_s,
        core_s=None if times.core_s is None else times.core_s + again_core_s,
    )


def _bottleneck(times: StageTimes, travel_s: Mapping[str, float], seconds: float, link_s: float) -> str:
    if link_s >= seconds:
        return "link"
    stage = times.bottleneck
    of_stage = {
        "sample": {EDGES: travel_s.get(EDGES, 0.0)},
        "load": {ROWS: travel_s[ROWS]},
        "propagate": {name: time_s for name, time_s in travel_s.items() if name not in (EDGES, ROWS)},
    }.get(stage, {})
    most = max(of_stage, key=lambda name: of_stage[name], default="")
    if 2 * sum(of_stage.values()) > times.stages_s[stage]:
        return f"network ({most})"
    return stage
