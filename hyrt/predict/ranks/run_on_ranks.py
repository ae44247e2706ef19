"""The prediction of a run that is one of several ranks, from this machine's calibration and a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.communication.distributed_epoch import RanksPrediction, predict_ranks
from hyrt_perfmodel.communication.full_graph_epoch import algorithm_epoch
from hyrt_perfmodel.communication.network import Network, find_network
from hyrt_perfmodel.communication.step_traffic import GRADIENTS, StepTraffic
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR
from hyrt_perfmodel.workloads.workload import TrainingWorkload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.partition.volumes.block_volumes import block_volumes
from hyrt.machine.cores import local_ranks, shared_cores
from hyrt.predict.calibrate.store import usable
from hyrt.predict.ranks.counted_traffic import configured_steps, placing_of
from hyrt.predict.ranks.full_graph_on_ranks import full_graph_work
from hyrt.predict.this_run import devices_of, first_assignment
from hyrt.predict.workload import sampled_workload, terms_of
from hyrt.quantities import one_line
from hyrt.sampling.sampler import Sampler
from hyrt.training.given.expected_run import ExpectedRun
from hyrt.training.setup import assign_threads, first_split

_MODELS = "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """A run of several ranks, as one of them sees it before it starts."""

    config: Config
    """All settings; with `--full-graph`, `distributed.algorithm` is no longer `auto`."""
    graph: Graph
    """The graph with the rows of this rank alone, and all edges."""
    homes: NDArray[Any]
    """[V] the rank, or for full graphs the block, that has each vertex's rows."""
    num_ranks: int
    """The number of ranks, N."""
    sampler: Callable[[], Sampler]
    """Gives the sampler of the run."""
    edges_are_split: bool = False
    """Whether the graph has the edges into this rank's vertices alone."""
    machines: Sequence[int]
    """[N] equal for ranks that read each other's rows where they lie."""
    measured: Network | None = None
    """The network, where the start of the run has measured it."""

    __repr__ = one_line

    def predict(self, say: Callable[[str], None]) -> ExpectedRun | None:
        """What the performance model expects of the run; None where it cannot say.

        It takes the other ranks to be like this one, and starts none of them in another way.

        Parameters
        ----------
        say
            Receives the reason if there is no prediction.

        Raises
        ------
        ConfigError
            If `distributed.network` is a file that cannot be read.
        """
        try:
            named = self.config.distributed.network
            network = self.measured if named is None else find_network(named)
        except ValueError as error:
            raise ConfigError(f"distributed.network: {error}") from error
        calibration, reason = usable()
        if network is None or calibration is None:
            say(f"no prediction: {_what_lacks(network, reason, calibrated=calibration is not None)}")
            return None
        if self.edges_are_split:
            say(
                "no prediction: edges are split, so that no rank can count what all send; where all parts "
                f"are, `hyrt predict --data PARTS --ranks {self.num_ranks} --network NETWORK` can"
            )
            return None
        try:
            platform = devices_of(self.config, calibration.platform)
            if self.config.sampler.whole_graph:
                return self._whole_graph(platform, network)
            return self._mini_batches(platform, network)
        except (ConfigError, ValueError) as error:
            say(f"no prediction: {error}")
            return None

    def _mini_batches(self, platform: Platform, network: Network) -> ExpectedRun:
        config = self.config
        training = sampled_workload(config, self.graph, self.sampler())
        found = [
            predict_ranks(
                *(config.distributed.strategy, platform, training, traffic, network),
                terms=terms_of(config),
                assign=partial(self._start, platform),
                ranks_of_machine=local_ranks(),
            )
            for traffic in self._traffics(training)
        ]
        return self._expected(
            platform, **_stages(min(found, key=lambda each: each.epoch_s)), host_trainers=_hosts(platform)
        )

    def _traffics(self, training: TrainingWorkload) -> list[StepTraffic]:
        """What travels in a step; of `hopgnn` for every number of time steps that it may come to."""
        config, given = self.config, self.config.distributed
        steps = configured_steps(
            config, self.graph, self.homes, self.num_ranks, self.sampler(), machines=self.machines
        )
        times = [None if given.time_steps is None else min(given.time_steps, self.num_ranks)]
        if given.strategy == "hopgnn" and given.time_steps is None:
            times = [*range(1, self.num_ranks + 1)]
        placings = [placing_of(config, given.strategy, num_times) for num_times in times]
        return [steps.traffic(placing, training.at(1.0)) for placing in placings]

    def _whole_graph(self, platform: Platform, network: Network) -> ExpectedRun:
        config, graph = self.config, self.graph
        training = sampled_workload(config, graph)
        sharing = max(local_ranks(), network.ranks_of_machine(self.num_ranks))
        threads = self._start(platform, training).threads.train
        given, topology = config.distributed, graph.topology
        volumes = block_volumes(
            topology.indptr, topology.indices, self.homes, self.num_ranks // given.num_replicas
        )
        work = full_graph_work(config, graph, platform, training, sharing * threads, ranks=self.num_ranks)
        found = algorithm_epoch(
            given.algorithm, volumes, self.num_ranks, work, network, ranks_of_machine=sharing
        )
        inside_s = found.compute_s + found.products_s
        return self._expected(
            platform,
            stages_s={
                **dict.fromkeys(("sample", "load", "transfer"), 0.0),
                "propagate": inside_s,
                "synchronize": found.gradients_s,
            },
            iteration_s=found.epoch_s,
            epoch_s=found.epoch_s,
            bottleneck="propagate" if found.compute_s > found.products_s else "network (products)",
            host_trainers=1,
        )

    def _start(self, platform: Platform, training: TrainingWorkload) -> Assignment:
        """What a rank starts with, which does not follow from the prediction; several share the cores."""
        balance = self.config.balance.model_copy(update={"predict": False})
        found = first_assignment(self.config.model_copy(update={"balance": balance}), platform, training)
        cores = max(1, (platform.host.cores or shared_cores()) // local_ranks())
        threads = {name: min(count, cores) for name, count in found.threads.by_name().items()}
        return replace(found, threads=Threads(**threads))

    def _expected(
        self,
        platform: Platform,
        *,
        stages_s: Mapping[str, float],
        iteration_s: float,
        epoch_s: float,
        bottleneck: str,
        host_trainers: int,
    ) -> ExpectedRun:
        config = self.config
        names = [trainer.name for trainer in platform.trainers()]
        split = first_split(config, names, None, config.data.batch_size)
        return ExpectedRun(
            stages_s=stages_s,
            iteration_s=iteration_s,
            epoch_s=epoch_s,
            relative_error=max(platform.relative_error or 0.0, ASSUMED_ERROR),
            bottleneck=bottleneck,
            split=dict(zip(names, split, strict=True)),
            threads=assign_threads(config, host_trainers),
        )


def _what_lacks(network: Network | None, reason: str, *, calibrated: bool) -> str:
    """Why several ranks cannot be predicted, and what to do."""
    given = "give distributed.network: 10gbit, or a file that `hyrt calibrate --network FILE` wrote"
    if calibrated:
        return f"the network of the ranks is not known: {given}"
    machine = reason or "this machine is not calibrated: run `hyrt calibrate`"
    return machine if network is not None else f"{machine}; and {given}"


def _hosts(platform: Platform) -> int:
    """How many trainers compute on the cores."""
    return sum(trainer.is_host or trainer.device.host_cores > 0 for trainer in platform.trainers())


def _stages(found: RanksPrediction) -> dict[str, Any]:
    """Its times under the stages that a run measures: sums and models travel while it synchronizes."""
    together_s = found.travel_s[GRADIENTS] + found.travel_s[_MODELS]
    stages_s = {**found.stages_s, "propagate": found.stages_s["propagate"] - together_s}
    return {
        "stages_s": {**stages_s, "synchronize": together_s},
        "iteration_s": found.iteration_s,
        "epoch_s": found.epoch_s,
        "bottleneck": found.bottleneck,
    }
