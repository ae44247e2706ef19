"""Training session of one rank in a distributed run, and failover if rank 0 is lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from hyrt_perfmodel.network import Network

from hyrt import __version__
from hyrt.cli.run_session import (
    CoordinatedStop,
    RunSession,
    find_newest_checkpoint,
    print_resume_command,
    record_failure,
)
from hyrt.config import Config, build_config
from hyrt.config.command_line import check_same_training
from hyrt.config.load import flatten_settings, parse_settings
from hyrt.distributed.context import DistributedContext, init_from_launcher
from hyrt.distributed.launch import LaunchInfo, rank_prefix, report_join_failures
from hyrt.distributed.local_rows import LocalRows, build_global_graph, map_same_host_rows, no_same_host_rows
from hyrt.distributed.monitoring import RanksHook
from hyrt.distributed.process_group import all_gather_object
from hyrt.distributed.rank_setup import (
    RankSetup,
    convert_to_one_step,
    set_up_full_graph,
    set_up_hetero,
    set_up_run,
)
from hyrt.distributed.sampling import with_global_degrees
from hyrt.distributed.strategies.registry import find_rank_problem, find_shares_problem
from hyrt.errors import ConfigError, DataError, RankFailureError
from hyrt.formatting import pluralize
from hyrt.graph.graph import Graph
from hyrt.graph.partition.manifest import GRAPH, is_partition, read_manifest
from hyrt.graph.partition.read_parts import OpenPart, open_part
from hyrt.graph.source import check_source_name
from hyrt.nn.hetero.inputs import find_embeddings
from hyrt.nn.models.model_kind import find_model, supports_edge_types
from hyrt.predict.rank_run import RankRun
from hyrt.report.progress import Progress
from hyrt.report.run_folder import RunFolder
from hyrt.report.run_process import lock_run, take_over
from hyrt.runtime.shutdown import StopSignals
from hyrt.telemetry.events import Event, Notice
from hyrt.telemetry.hooks import Hook
from hyrt.telemetry.run_hooks import hooks_from_environment
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import Checkpoint, checkpoint_of
from hyrt.training.open_graph import link_graph, opened_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training


class LeaderFailover:
    """Replacement of a lost rank 0, which writes the records in its run folder.

    Parameters
    ----------
    path, holder
        Run folder and holder of its lock, as broadcast by rank 0.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self._path = path
        self._holder = holder
        self._lock: ExitStack | None = None

    def take_over_folder(self) -> Path | None:
        """Take over the run folder and return it.

        Returns None if rank 0 or another rank holds the folder, or if the folder is on another machine.
        """
        if self._lock is None:
            self._lock = take_over(self._path, self._holder)
        return None if self._lock is None else self._path

    def record(self, error: BaseException, known: Mapping[str, Any]) -> None:
        """Write the summary and the report of the failed run, and print how to resume it.

        Parameters
        ----------
        error
            Cause of the failure.
        known
            Facts about the run that this rank knows, for the summary.
        """
        path = self.take_over_folder()
        if path is None:
            return
        with RunFolder(path) as folder:
            folder.remove_leftovers()
            record_failure(folder, error, known, _warn)
            print_resume_command(folder)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()


def _warn(text: str) -> None:
    print(f"warning: {rank_prefix()}{text}", file=sys.stderr, flush=True)


# After the loss of another rank, joining threads and closing devices takes less time, unless something hangs.
_EXIT_DELAY_S = 6.0
# Seconds of the network measurement, which are enough to choose an algorithm.
_MEASURED_S = 0.03
PER_RANK_SETTINGS = (
    *("devices", "split", "data.source", "distributed.network"),
    *("checkpoint", "evaluate.memory_gib", "fullgraph"),
)
"""Settings that may differ between ranks."""
_VERSIONS = {"the version of hyrt": __version__, "the version of torch": torch.__version__}
# The first two settings determine how far ahead steps are split, which must be equal on all ranks.
_COMMON_RUNTIME = ("runtime.max_in_flight_steps", "runtime.pipelined", "runtime.trace")


@dataclass(frozen=True, slots=True)
class ResumedSettings:
    """Settings of a resumed run, which rank 0 sends to all other ranks."""

    text: str | None
    """Settings with which the run was started, as YAML on rank 0; None on other ranks."""
    apply_changes: Callable[[Config], Config]
    """Function that applies the command-line changes of this rank to the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSession:
    """Training session of one of several ranks. Rank 0 owns the run folder and the display."""

    config: Config
    launch: LaunchInfo
    signals: StopSignals
    progress: Callable[[], Progress]
    """Function that creates the display."""
    folder: Callable[[int], tuple[RunFolder, bool]]
    """Function that returns the run folder for a number of restarts, and whether the folder is new."""
    resumed: ResumedSettings | None = None
    """Settings of a resumed run, otherwise None. On ranks other than 0, `config` then has only the settings
    that are needed to join rank 0.
    """
    notices: tuple[str, ...] = ()
    """Notices that are printed at the start."""
    measured: Network | None = None
    """Network that was measured at the start; None without a measurement."""

    def run(self) -> int:
        """Train to the end or until any rank receives a stop signal; all ranks return the same exit code.

        Raises
        ------
        HyrtError
            As in a run of one process, and `RankFailureError` if another rank has failed or is lost.
        """
        with report_join_failures():
            self._check()
        timeout_s = self.config.distributed.timeout_s
        with init_from_launcher(timeout_s=timeout_s, on_peer_failure=_schedule_exit) as ranks:
            ranks.check_equal("versions", _VERSIONS)
            ranks.check_equal("command", {"--resume": "not given" if self.resumed is None else "given"})
            code = self._with_settings_of_run(ranks)._run(ranks)
        if ranks.needs_hard_exit:
            _exit_now(code)
        return code

    def _with_settings_of_run(self, ranks: DistributedContext) -> RankSession:
        """Return a session with the settings in the run folder, which rank 0 has read, if the run
        is resumed.
        """
        if self.resumed is None:
            return self
        text = all_gather_object(ranks.control, self.resumed.text)[0]
        if ranks.rank == 0:
            return self
        run_config = build_config(parse_settings(text, "the run"), lenient=True)
        session = replace(self, config=self.resumed.apply_changes(run_config))
        session._check()
        return session

    def _run(self, ranks: DistributedContext) -> int:
        config = self.config
        ranks.check_equal("settings", common_settings(config))
        hetero_graph = self._hetero_graph(ranks)
        if hetero_graph is not None:
            return self._train_hetero(ranks, hetero_graph)
        if config.sampler.is_full_graph and config.distributed.algorithm == "auto":
            config_with_algorithm, reason, network = _choose_algorithm(config, ranks)
            return replace(self, config=config_with_algorithm, notices=(reason,), measured=network)._train(
                ranks
            )
        return self._train(ranks)

    def _train(self, ranks: DistributedContext) -> int:
        config = self.config
        part = self._part()
        ranks.check_equal("partition", {"the id of the partition": part.manifest.id})
        is_full_graph = config.sampler.is_full_graph
        shares_rows = config.distributed.shared_memory_features and not is_full_graph
        source = config.data.source
        same_host_rows = (
            map_same_host_rows(source, part, ranks) if shares_rows else no_same_host_rows(ranks.size)
        )
        local_rows = LocalRows(part.rows, part.part_ids, part.local_ids, same_host_rows.rows)
        is_split = part.manifest.topology == "split"
        if reason := find_rank_problem(config, has_split_edges=is_split):
            raise ConfigError(reason)
        graph = link_graph(config, part.graph) if config.train.predicts_links else part.graph
        # Select the edges before the degrees are added up, which must count only edges that the model reads.
        edges = _select_edges(config, graph, ranks, edges_are_split=is_split)
        graph = with_global_degrees(edges, ranks.control) if is_split else edges
        rows = graph if is_full_graph else build_global_graph(config, graph, local_rows, ranks)
        prepared = PreparedRun(config, rows)
        share = set_up_full_graph if is_full_graph else set_up_run
        rank_part = share(
            *(config, graph, local_rows, ranks, prepared, lambda: self.signals.first_signal),
            has_partitioned_topology=is_split,
        )
        stop = CoordinatedStop(self.signals, rank_part.reduction)
        method = config.distributed.algorithm if is_full_graph else config.distributed.strategy
        ranks_hook = RanksHook(ranks, list(prepared.model.parameters()), method)
        rank_part = replace(rank_part, shared=replace(rank_part.shared, seen=ranks_hook.merge_event))
        hooks = [ranks_hook, *rank_part.hooks]
        if ranks.rank:
            return self._follow(ranks, prepared, rank_part, stop, hooks)
        rank_run = RankRun(
            config=config,
            graph=edges.with_features(part.rows),
            homes=part.part_ids,
            num_ranks=ranks.size,
            sampler=lambda: prepared.sampler,
            edges_are_split=is_split,
            measured=self.measured,
            machines=same_host_rows.group_leaders,
        )
        session = replace(self, notices=(*self.notices, *same_host_rows.notices))
        return session._lead(ranks, prepared, rank_part, stop, hooks, rank_run)

    def _hetero_graph(self, ranks: DistributedContext) -> Graph | None:
        """Return the graph if it is heterogeneous, and therefore not partitioned, otherwise None."""
        config, kind = self.config, self.config.model.kind
        if not find_model(kind).hetero and not supports_edge_types(kind):
            return None
        in_parts = is_partition(Path(config.data.source))
        ranks.check_equal("kind of data", {"data.source": "in parts" if in_parts else "not in parts"})
        if in_parts:
            return None
        graph = opened_graph(config)
        return None if graph.types is None else graph

    def _train_hetero(self, ranks: DistributedContext, graph: Graph) -> int:
        """Train on a heterogeneous graph, of which every rank has a replica."""
        if self.config.sampler.is_full_graph:
            config, notice = convert_to_one_step(self.config, graph)
            return replace(self, config=config, notices=(notice,))._train_hetero(ranks, graph)
        found = graph.fingerprint
        ranks.check_equal("dataset", {"labels and training vertices": found.labels, "edges": found.edges})
        prepared = PreparedRun(self.config, graph)
        graph = prepared.graph
        rank_part = set_up_hetero(self.config, graph, ranks, prepared, lambda: self.signals.first_signal)
        stop = CoordinatedStop(self.signals, rank_part.reduction)
        compared_tensors = [
            *prepared.model.parameters(),
            *(table.values for table in find_embeddings(prepared.model)),
        ]
        ranks_hook = RanksHook(ranks, compared_tensors, "model-centric")
        rank_part = replace(rank_part, shared=replace(rank_part.shared, seen=ranks_hook.merge_event))
        if ranks.rank:
            return self._follow(ranks, prepared, rank_part, stop, [ranks_hook])
        return self._lead(ranks, prepared, rank_part, stop, [ranks_hook], None)

    def _check(self) -> None:
        """Reject settings that do not work on several ranks."""
        config = self.config
        if "auto" in config.devices:
            raise ConfigError(
                "devices=auto does not work with several ranks: set devices to the devices of each rank"
            )
        if reason := find_rank_problem(config) or find_shares_problem(config, self.launch.size):
            raise ConfigError(reason)
        replicas = config.distributed.num_replicas
        if config.sampler.is_full_graph and self.launch.size % replicas:
            raise ConfigError(
                f"distributed.replication={replicas} does not divide the {self.launch.size} ranks: start a "
                "multiple of it, or set another distributed.replication"
            )

    def _part(self) -> OpenPart:
        source, size = self.config.data.source, self.launch.size
        is_full_graph = self.config.sampler.is_full_graph
        copies = self.config.distributed.num_replicas if is_full_graph else 1
        size //= copies
        # A folder of parts that has no partition.json is damaged.
        if not is_partition(Path(source)) and not (Path(source) / GRAPH).is_dir():
            check_source_name(source)
            raise DataError(
                f"{source} is not partitioned, but {size * copies} ranks need {size} parts: run "
                f"hyrt partition --data {source} --parts {size} -o PARTS, and use --data PARTS"
            )
        parts = read_manifest(Path(source)).num_parts
        if parts % size:
            raise DataError(
                f"{source} has {pluralize(parts, 'part')}, which {size * copies} ranks cannot share evenly: "
                f"start {'one rank' if copies == 1 else f'{copies} ranks'} per part, or partition again "
                f"with --parts {size}"
            )
        rank = self.launch.rank // copies
        return open_part(source, rank, normalize=self.config.data.normalize, num_blocks=size)

    def _lead(
        self,
        ranks: DistributedContext,
        prepared: PreparedRun,
        mine: RankSetup,
        stop: CoordinatedStop,
        hooks: Sequence[Hook],
        seen: RankRun | None,
    ) -> int:
        with ExitStack() as stack:
            opened, is_new = self.folder(ranks.restarts)
            folder = stack.enter_context(opened)
            holder = stack.enter_context(lock_run(folder.path))
            progress = stack.enter_context(self.progress())
            for text in self.notices:
                progress.handle(Notice(kind="info", text=text))
            checkpoint = None
            if not is_new:
                folder.remove_leftovers()
                checkpoint = find_newest_checkpoint(folder, progress)
                if checkpoint is not None:
                    check_same_training(self.config, checkpoint.state["config"])
            all_gather_object(ranks.control, [os.fspath(folder.path.absolute()), holder])
            _send_checkpoint(ranks, checkpoint)
            mine.resume_from(checkpoint)
            session = RunSession(
                *(self.config, mine.graph, folder, progress, stop),
                prepared=prepared,
                shared=mine.shared,
                predict=None if seen is None else lambda config, graph, sampler, say: seen.predict(say),
                hooks=hooks,
            )
            return session.run(checkpoint, is_new=is_new)

    def _follow(
        self,
        ranks: DistributedContext,
        prepared: PreparedRun,
        mine: RankSetup,
        stop: CoordinatedStop,
        hooks: Sequence[Hook],
    ) -> int:
        path, holder = all_gather_object(ranks.control, None)[0]
        checkpoint = _receive_checkpoint(ranks)
        mine.resume_from(checkpoint)
        leader = LeaderFailover(Path(path), holder)

        def print_warning(event: Event) -> None:
            # Rank 0 shows the events of the run, but not the warnings of this process.
            if isinstance(event, Notice) and event.kind == "warning":
                print(f"warning: {rank_prefix()}{event.text}", file=sys.stderr, flush=True)

        training = Training(
            build_run(
                self.config,
                mine.graph,
                emit=print_warning,
                should_stop=lambda: stop.requested,
                on_stall=_print_stacks,
                hooks=[*hooks_from_environment(ranks.rank, ranks.size), *hooks],
                prepared=prepared,
                shared=replace(mine.shared, inherited=leader.take_over_folder),
            )
        )
        if checkpoint is not None:
            # Drop the assignments of the checkpoint, which are for the trainers of rank 0.
            training.resume(
                Checkpoint(checkpoint.step, checkpoint.path, {**checkpoint.state, "balance": None})
            )
        stop.defer_to_step_end(lambda text: None, str)
        try:
            status = training.run().status
        except BaseException as error:
            if ranks.failure_reports.is_receiver:
                leader.record(error, training.summary_of_failure)
            raise
        finally:
            leader.close()
        return stop.exit_code if status == "interrupted" else 0


def _select_edges(config: Config, graph: Graph, ranks: DistributedContext, *, edges_are_split: bool) -> Graph:
    """Return a rank's graph with the edges that the model reads; count the edges left out on all ranks."""
    found = PreparedRun(config, graph).graph
    if not edges_are_split:
        return found
    left_out = all_gather_object(ranks.control, found.num_loops_left_out)
    return replace(found, num_loops_left_out=sum(left_out)) if any(left_out) else found


def _choose_algorithm(config: Config, ranks: DistributedContext) -> tuple[Config, str, Network]:
    """Choose the fastest algorithm by the cost model on rank 0.

    Returns the settings with the algorithm, the reason, and the measured network.
    """
    from hyrt.predict.calibrate.host import measure_network
    from hyrt.predict.rank_run import choose_algorithm

    network = measure_network(ranks, "measured", _MEASURED_S).network
    choice = choose_algorithm(config, ranks.size, network) if ranks.rank == 0 else None
    algorithm, replication, reason = all_gather_object(ranks.control, choice)[0]
    distributed = config.distributed.model_copy(
        update={"algorithm": algorithm, "replication": replication if replication > 1 else None}
    )
    return config.model_copy(update={"distributed": distributed}), reason, network


def common_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must be equal on all ranks."""
    return {
        name: value
        for name, value in flatten_settings(config.model_dump(mode="json"))
        if name in _COMMON_RUNTIME
        or not any(
            name == rank_setting or name.startswith(f"{rank_setting}.")
            for rank_setting in (*PER_RANK_SETTINGS, "runtime", "balance")
        )
    }


def _send_checkpoint(ranks: DistributedContext, checkpoint: Checkpoint | None) -> None:
    """Broadcast the checkpoint file from which the run resumes."""
    name, data = b"", b""
    if checkpoint is not None:
        name, data = checkpoint.path.name.encode(), checkpoint.path.read_bytes()
    for payload in (name, data):
        ranks.control.broadcast_from_first(torch.tensor([len(payload)]), "control")
        ranks.control.broadcast_from_first(
            torch.from_numpy(np.frombuffer(payload, np.uint8).copy()), "control"
        )


def _receive_checkpoint(ranks: DistributedContext) -> Checkpoint | None:
    """Receive the checkpoint file that rank 0 broadcasts; None if there is none."""
    payloads: list[bytes] = []
    for _ in range(2):
        length = torch.zeros(1, dtype=torch.int64)
        ranks.control.broadcast_from_first(length, "control")
        data = torch.empty(int(length), dtype=torch.uint8)
        ranks.control.broadcast_from_first(data, "control")
        payloads.append(data.numpy().tobytes())
    name, data_bytes = payloads
    return checkpoint_of(Path(name.decode()), data_bytes) if name else None


def _print_stacks(stacks: str) -> None:
    print(f"{rank_prefix()}{stacks}", file=sys.stderr, flush=True)


def _schedule_exit(loss: RankFailureError) -> None:
    """End the process soon, even if the main thread hangs."""

    def exit_process() -> None:
        print(f"error: {rank_prefix()}{loss}", file=sys.stderr, flush=True)
        _exit_now(loss.exit_code)

    timer = threading.Timer(_EXIT_DELAY_S, exit_process)
    timer.daemon = True
    timer.start()


def _exit_now(code: int) -> NoReturn:
    """End the process at once, because a normal exit might wait for lost ranks or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
