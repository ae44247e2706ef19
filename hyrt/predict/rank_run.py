"""Prediction of a distributed run on one rank, and choice of an algorithm for full graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hyrt_perfmodel.distributed_epoch import (
    DistributedPrediction,
    FullGraphWork,
    algorithm_epoch,
    explain_choice,
    fastest_algorithm,
    predict_distributed,
)
from hyrt_perfmodel.network import Network, find_network
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR
from hyrt_perfmodel.traffic import GRADIENTS, StepTraffic
from hyrt_perfmodel.workload import TrainingWorkload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.read_parts import open_part
from hyrt.graph.source import open_graph
from hyrt.predict.calibrate.store import usable_calibration
from hyrt.predict.counted_traffic import configured_steps, configured_strategy
from hyrt.predict.distributed_full_graph import (
    PartitionChoice,
    candidate_epochs,
    full_graph_work,
    work_at_assumed_rates,
)
from hyrt.predict.predict_run import first_assignment, run_platform
from hyrt.predict.workload import configured_terms, sampled_workload
from hyrt.runtime.hardware import num_local_ranks, shared_cores
from hyrt.sampling.sampler import Sampler
from hyrt.telemetry.events import RunPrediction
from hyrt.training.setup import assign_threads, first_split, select_edges


def choose_algorithm(config: Config, ranks: int, network: Network) -> tuple[str, int, str]:
    """Return the fastest full-graph algorithm for a partitioned dataset, its replication, and an explanation.

    Raises ConfigError if no algorithm supports these partitions and ranks.
    """
    folder = config.data.source
    # Rank 0 has partition 0 with every algorithm, and may have no other partition.
    part = open_part(folder, 0)
    num_parts = part.manifest.num_parts
    graph = part.graph.with_features(part.rows)
    if part.manifest.topology == "split":
        graph = open_graph(folder, normalize="none")
    graph = select_edges(config, graph)
    work, origin = _work_and_origin(config, graph)
    choices = [PartitionChoice(part.part_ids, num_parts)]
    epochs = candidate_epochs(graph.topology, choices, ranks, work, network)
    if not epochs:
        raise ConfigError(
            f"{ranks} ranks cannot share the {num_parts} parts in {folder} evenly: start a number of ranks "
            f"that divides {num_parts}, or partition again with --parts {ranks}"
        )
    best = fastest_algorithm(epochs)
    text = (
        f"distributed.algorithm=auto: {explain_choice(epochs)} (network: "
        f"{network.gb_s * 1e3:,.3g} MB/s, {network.latency_s * 1e6:,.3g} us per message; "
        f"compute times: {origin})"
    )
    return best.algorithm, best.replication, text


def _work_and_origin(config: Config, graph: Graph) -> tuple[FullGraphWork, str]:
    """Return the work of an epoch on one machine, and the origin of its times."""
    calibration, _ = usable_calibration()
    if calibration is None:
        return work_at_assumed_rates(config, graph), "assumed, because this machine is not calibrated"
    try:
        platform = run_platform(config, calibration.platform)
        work = full_graph_work(config, graph, platform, sampled_workload(config, graph))
    except (ConfigError, ValueError):
        return work_at_assumed_rates(config, graph), "assumed, because these devices were not calibrated"
    return work, "from the calibration"


_MODELS = "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """Distributed run before its start, as one of its ranks sees it."""

    config: Config
    """Configuration of the run. For full-graph training, `distributed.algorithm` is resolved."""
    graph: Graph
    """Graph with all edges, but only this rank's feature rows."""
    homes: NDArray[Any]
    """Rank that owns each vertex's feature row, or its block in full-graph training: [V]."""
    num_ranks: int
    sampler: Callable[[], Sampler]
    """Function that returns the run's sampler."""
    edges_are_split: bool = False
    """Whether the graph contains only the edges into this rank's vertices."""
    machines: Sequence[int]
    """Machine id of each rank: [N]. Ranks with equal ids read each other's rows in shared memory."""
    measured: Network | None = None
    """Network measured at the start of the run, or None."""

    __repr__ = short_repr

    def predict(self, notify: Callable[[str], None]) -> RunPrediction | None:
        """Predict the run on the assumption that all ranks are like this one.

        If this is not possible, return None and pass the reason to `notify`.

        Raises ConfigError if `distributed.network` is a file that cannot be read.
        """
        try:
            named = self.config.distributed.network
            network = self.measured if named is None else find_network(named)
        except ValueError as error:
            raise ConfigError(f"distributed.network: {error}") from error
        calibration, reason = usable_calibration()
        if network is None or calibration is None:
            notify(f"no prediction: {_missing_reason(network, reason, calibrated=calibration is not None)}")
            return None
        if self.edges_are_split:
            notify(
                "no prediction: edges are split, so no rank can count the traffic of all ranks: on a machine "
                f"with all parts, run `hyrt predict --data PARTS --ranks {self.num_ranks} --network NETWORK`"
            )
            return None
        try:
            platform = run_platform(self.config, calibration.platform)
            if self.config.sampler.is_full_graph:
                return self._predict_full_graph(platform, network)
            return self._predict_mini_batches(platform, network)
        except (ConfigError, ValueError) as error:
            notify(f"no prediction: {error}")
            return None

    def _predict_mini_batches(self, platform: Platform, network: Network) -> RunPrediction:
        config = self.config
        training = sampled_workload(config, self.graph, self.sampler())
        predictions = [
            predict_distributed(
                *(config.distributed.strategy, platform, training, traffic, network),
                terms=configured_terms(config),
                assign=partial(self._initial_assignment, platform),
                ranks_per_machine=num_local_ranks(),
            )
            for traffic in self._traffics(training)
        ]
        return self._expected(
            platform,
            **_stages(min(predictions, key=lambda prediction: prediction.epoch_s)),
            host_trainers=_num_host_trainers(platform),
        )

    def _traffics(self, training: TrainingWorkload) -> list[StepTraffic]:
        """Return the traffic of a step; for `hopgnn`, return it for each possible number of time steps."""
        config, settings = self.config, self.config.distributed
        steps = configured_steps(
            config, self.graph, self.homes, self.num_ranks, self.sampler(), machines=self.machines
        )
        times = [None if settings.time_steps is None else min(settings.time_steps, self.num_ranks)]
        if settings.strategy == "hopgnn" and settings.time_steps is None:
            times = [*range(1, self.num_ranks + 1)]
        placings = [configured_strategy(config, settings.strategy, num_times) for num_times in times]
        return [steps.traffic(placing, training.at(1.0)) for placing in placings]

    def _predict_full_graph(self, platform: Platform, network: Network) -> RunPrediction:
        config, graph = self.config, self.graph
        training = sampled_workload(config, graph)
        sharing = max(num_local_ranks(), network.ranks_per_machine(self.num_ranks))
        threads = self._initial_assignment(platform, training).threads.train
        settings, topology = config.distributed, graph.topology
        volumes = count_block_volumes(
            topology.indptr, topology.indices, self.homes, self.num_ranks // settings.num_replicas
        )
        work = full_graph_work(config, graph, platform, training, sharing * threads, ranks=self.num_ranks)
        epoch = algorithm_epoch(
            settings.algorithm, volumes, self.num_ranks, work, network, ranks_per_machine=sharing
        )
        inside_s = epoch.compute_s + epoch.products_s
        return self._expected(
            platform,
            stages_s={
                **dict.fromkeys(("sample", "load", "transfer"), 0.0),
                "propagate": inside_s,
                "synchronize": epoch.gradients_s,
            },
            iteration_s=epoch.epoch_s,
            epoch_s=epoch.epoch_s,
            bottleneck="propagate" if epoch.compute_s > epoch.products_s else "network (products)",
            host_trainers=1,
        )

    def _initial_assignment(self, platform: Platform, training: TrainingWorkload) -> Assignment:
        """Return a rank's initial assignment. The ranks of a machine share its cores."""
        balance = self.config.balance.model_copy(update={"predict": False})
        assignment = first_assignment(self.config.model_copy(update={"balance": balance}), platform, training)
        cores = max(1, (platform.host.cores or shared_cores()) // num_local_ranks())
        threads = {name: min(count, cores) for name, count in assignment.threads.by_name().items()}
        return replace(assignment, threads=Threads(**threads))

    def _expected(
        self,
        platform: Platform,
        *,
        stages_s: Mapping[str, float],
        iteration_s: float,
        epoch_s: float,
        bottleneck: str,
        host_trainers: int,
    ) -> RunPrediction:
        config = self.config
        names = [trainer.name for trainer in platform.trainers()]
        split = first_split(config, names, None, config.data.batch_size)
        return RunPrediction(
            stages_s=stages_s,
            iteration_s=iteration_s,
            epoch_s=epoch_s,
            relative_error=max(platform.relative_error or 0.0, ASSUMED_ERROR),
            bottleneck=bottleneck,
            split=dict(zip(names, split, strict=True)),
            threads=assign_threads(config, host_trainers),
        )


def _missing_reason(network: Network | None, reason: str, *, calibrated: bool) -> str:
    """Return the reason why several ranks cannot be predicted, and the remedy."""
    remedy = (
        "set distributed.network to a rate such as 10gbit, or to a file from `hyrt calibrate --network FILE`"
    )
    if calibrated:
        return f"the network between the ranks is unknown: {remedy}"
    machine = reason or "this machine is not calibrated: run `hyrt calibrate`"
    return machine if network is not None else f"{machine}, and {remedy}"


def _num_host_trainers(platform: Platform) -> int:
    """Return the number of trainers that compute on host cores."""
    return sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in platform.trainers())


def _stages(prediction: DistributedPrediction) -> dict[str, Any]:
    """Return the predicted times by stage; the exchange of gradients and models counts as synchronization."""
    communication_s = prediction.communication_s[GRADIENTS] + prediction.communication_s[_MODELS]
    stages_s = {**prediction.stages_s, "propagate": prediction.stages_s["propagate"] - communication_s}
    return {
        "stages_s": {**stages_s, "synchronize": communication_s},
        "iteration_s": prediction.iteration_s,
        "epoch_s": prediction.epoch_s,
        "bottleneck": prediction.bottleneck,
    }
