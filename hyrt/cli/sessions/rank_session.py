"""Training session of one rank of a distributed run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from hyrt_perfmodel.communication.network import Network

from hyrt import __version__
from hyrt.cli.sessions.agreed_stop import AgreedStop
from hyrt.cli.sessions.lost_leader import LostLeader
from hyrt.cli.sessions.run_session import Session, newest_checkpoint
from hyrt.config import Config, build_config
from hyrt.config.command_line import check_same_training
from hyrt.config.yaml_text import leaves, settings_of
from hyrt.distributed.joined_ranks import JoinedRanks, joined_by_launcher
from hyrt.distributed.launch import Launch, rank_prefix, unjoined
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.sharing.all_rows import graph_of_all_rows
from hyrt.distributed.sharing.possible_strategies import why_impossible, why_no_links, why_no_shares
from hyrt.distributed.sharing.rows_beside import no_rows_beside, rows_beside
from hyrt.distributed.sharing.share_full_graph import share_full_graph
from hyrt.distributed.sharing.share_run import RankPart, share_run
from hyrt.distributed.sharing.share_typed import as_one_step, share_typed
from hyrt.distributed.split_edges.all_degrees import with_all_degrees
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.distributed.watch.ranks_hook import RanksHook
from hyrt.errors import ConfigError, DataError, RankLost, listed
from hyrt.graph.graph import Graph
from hyrt.graph.partition.manifest import GRAPH, is_partition, read_manifest
from hyrt.graph.partition.one_part import OpenPart, open_part
from hyrt.graph.source import check_name
from hyrt.machine.this_process.stop_signals import StopSignals
from hyrt.nn.models.model_kind import find_model, takes_edge_types
from hyrt.nn.typed.learned.learned_rows import tables_of
from hyrt.observe.events import Event, Notice
from hyrt.observe.hook import Hook
from hyrt.observe.wanted_hooks import hooks_of_environment
from hyrt.predict.ranks.run_on_ranks import RankRun
from hyrt.quantities import counted
from hyrt.report.records.run_folder import RunFolder
from hyrt.report.records.run_lock import locked
from hyrt.report.terminal.progress import Progress
from hyrt.training.checkpoint import Checkpoint, checkpoint_of
from hyrt.training.compose import compose_run
from hyrt.training.given.link_graph import link_graph
from hyrt.training.given.opened_graph import opened_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

# After the loss of another rank, joining threads and closing devices takes less, unless something hangs.
_EXIT_DELAY_S = 6.0
# Duration of the network measurement, sufficient to choose an algorithm.
_MEASURED_S = 0.03
OWN_SETTINGS = (
    *("devices", "split", "data.source", "distributed.network"),
    *("checkpoint", "evaluate.memory_gib", "fullgraph"),
)
"""Settings that may differ between ranks."""
_VERSIONS = {"the version of hyrt": __version__, "the version of torch": torch.__version__}
# The first two determine how far ahead steps are split, which must be equal on all ranks.
_COMMON_RUNTIME = ("runtime.depth", "runtime.pipelined", "runtime.trace")


@dataclass(frozen=True, slots=True)
class ResumedSettings:
    """Settings of a resumed run, which all other ranks receive from rank 0."""

    text: str | None
    """Settings that the run was started with, as YAML, on rank 0; None on other ranks."""
    changed: Callable[[Config], Config]
    """Applies the command-line changes of this rank to the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSession:
    """Training session of one of several ranks; rank 0 owns the run folder and the display."""

    config: Config
    launch: Launch
    signals: StopSignals
    progress: Callable[[], Progress]
    """Creates the display."""
    folder: Callable[[int], tuple[RunFolder, bool]]
    """Returns the run folder for a number of restarts, and whether it is new."""
    resumed: ResumedSettings | None = None
    """Set if the run is resumed: `config` then only has the settings needed to join rank 0, except on rank
    0.
    """
    said: tuple[str, ...] = ()
    """Notices to print at the start."""
    measured: Network | None = None
    """Measured network, or None."""

    def run(self) -> int:
        """Train to the end or until any rank receives a stop signal; the exit code is equal on all ranks.

        Raises
        ------
        HyrtError
            As in a run of one process, and `RankLost` if another rank has failed or is lost.
        """
        with unjoined():
            self._check()
        timeout_s = self.config.distributed.timeout_s
        with joined_by_launcher(timeout_s=timeout_s, on_loss=_schedule_exit) as ranks:
            ranks.agree("versions", _VERSIONS)
            ranks.agree("command", {"--resume": "not given" if self.resumed is None else "given"})
            code = self._with_settings_of_run(ranks)._run(ranks)
        if ranks.leaves_work_behind:
            _exit_now(code)
        return code

    def _with_settings_of_run(self, ranks: JoinedRanks) -> RankSession:
        """Return a session with the settings that rank 0 has read from the run folder, if the run is
        resumed.
        """
        if self.resumed is None:
            return self
        text = told_by_all(ranks.control, self.resumed.text)[0]
        if ranks.rank == 0:
            return self
        run_config = build_config(settings_of(text, "the run"), lenient=True)
        session = replace(self, config=self.resumed.changed(run_config))
        session._check()
        return session

    def _run(self, ranks: JoinedRanks) -> int:
        config = self.config
        ranks.agree("settings", common_settings(config))
        hetero_graph = self._hetero_graph(ranks)
        if hetero_graph is not None:
            return self._train_hetero(ranks, hetero_graph)
        if config.sampler.whole_graph and config.distributed.algorithm == "auto":
            config_with_algorithm, reason, network = _choose_algorithm(config, ranks)
            return replace(self, config=config_with_algorithm, said=(reason,), measured=network)._train(ranks)
        return self._train(ranks)

    def _train(self, ranks: JoinedRanks) -> int:
        config = self.config
        part = self._part()
        ranks.agree("partition", {"the id of the partition": part.manifest.id})
        is_full_graph = config.sampler.whole_graph
        shares_rows = config.distributed.share_rows and not is_full_graph
        source = config.data.source
        same_host_rows = rows_beside(source, part, ranks) if shares_rows else no_rows_beside(ranks.size)
        local_rows = OwnRows(part.rows, part.homes, part.places, same_host_rows.rows)
        is_split = part.manifest.topology == "split"
        if is_split and config.train.predicts_links:
            raise ConfigError(
                "train.objective=links needs all edges on each rank, but each of these parts has only its "
                "own edges: partition again with --topology replicated"
            )
        graph = link_graph(config, part.graph) if config.train.predicts_links else part.graph
        # Before degrees are added up, which are those of the edges that the model reads.
        edges = _select_edges(config, graph, ranks, edges_are_split=is_split)
        graph = with_all_degrees(edges, ranks.control) if is_split else edges
        rows = graph if is_full_graph else graph_of_all_rows(config, graph, local_rows, ranks)
        prepared = PreparedRun(config, rows)
        share = share_full_graph if is_full_graph else share_run
        rank_part = share(
            *(config, graph, local_rows, ranks, prepared, lambda: self.signals.first),
            edges_are_split=is_split,
        )
        stop = AgreedStop(self.signals, rank_part.reduction)
        method = config.distributed.algorithm if is_full_graph else config.distributed.strategy
        ranks_hook = RanksHook(ranks, list(prepared.model.parameters()), method)
        rank_part = replace(rank_part, shared=replace(rank_part.shared, seen=ranks_hook.seen))
        hooks = [ranks_hook, *rank_part.hooks]
        if ranks.rank:
            return self._follow(ranks, prepared, rank_part, stop, hooks)
        rank_run = RankRun(
            config=config,
            graph=edges.with_features(part.rows),
            homes=part.homes,
            num_ranks=ranks.size,
            sampler=lambda: prepared.sampler,
            edges_are_split=is_split,
            measured=self.measured,
            machines=same_host_rows.machines,
        )
        session = replace(self, said=(*self.said, *same_host_rows.said))
        return session._lead(ranks, prepared, rank_part, stop, hooks, rank_run)

    def _hetero_graph(self, ranks: JoinedRanks) -> Graph | None:
        """Return the graph if it is heterogeneous, which means that it is not partitioned."""
        config, kind = self.config, self.config.model.kind
        if not find_model(kind).typed and not takes_edge_types(kind):
            return None
        in_parts = is_partition(Path(config.data.source))
        ranks.agree("kind of data", {"data.source": "in parts" if in_parts else "not in parts"})
        if in_parts:
            return None
        graph = opened_graph(config)
        return None if graph.types is None else graph

    def _train_hetero(self, ranks: JoinedRanks, graph: Graph) -> int:
        """Train on a graph that is replicated on every rank."""
        if self.config.sampler.whole_graph:
            config, notice = as_one_step(self.config, graph)
            return replace(self, config=config, said=(notice,))._train_hetero(ranks, graph)
        ranks.agree("dataset", {"labels and training vertices": graph.checksum})
        prepared = PreparedRun(self.config, graph)
        graph = prepared.graph
        rank_part = share_typed(self.config, graph, ranks, prepared, lambda: self.signals.first)
        stop = AgreedStop(self.signals, rank_part.reduction)
        compared_tensors = [
            *prepared.model.parameters(),
            *(table.values for table in tables_of(prepared.model)),
        ]
        ranks_hook = RanksHook(ranks, compared_tensors, "model-centric")
        rank_part = replace(rank_part, shared=replace(rank_part.shared, seen=ranks_hook.seen))
        if ranks.rank:
            return self._follow(ranks, prepared, rank_part, stop, [ranks_hook])
        return self._lead(ranks, prepared, rank_part, stop, [ranks_hook], None)

    def _check(self) -> None:
        """Refuse settings that do not work with several ranks."""
        config = self.config
        if "auto" in config.devices:
            raise ConfigError("devices=auto chooses for one process: name the devices of each rank")
        if reason := why_no_links(config):
            raise ConfigError(reason)
        strategy, devices = config.distributed.strategy, config.devices
        one_cpu = len(devices) == 1 and devices[0].partition(":")[0] == "cpu"
        if config.sampler.whole_graph:
            self._check_full_graph()
            return
        if strategy in ("p3", "naive-migration") and not one_cpu:
            raise ConfigError(
                f"distributed.strategy={strategy} trains on one CPU device per rank, not on "
                f"{listed(devices)}: give devices=cpu or another strategy"
            )
        distributed = config.distributed
        if reason := why_no_shares(config, self.launch.size):
            raise ConfigError(reason)
        if strategy in ("p3", "naive-migration") and (
            distributed.cache is not None or distributed.wire != "float32"
        ):
            raise ConfigError(
                f"distributed.strategy={strategy} fetches no rows for distributed.cache to keep, or for "
                "distributed.wire to round: omit both"
            )
        if reason := why_impossible(config, strategy):
            raise ConfigError(reason)

    def _check_full_graph(self) -> None:
        """Refuse settings of full-graph training that do not work with several ranks."""
        distributed, size = self.config.distributed, self.launch.size
        for name in ("strategy", "shares", "cache", "wire", "share_rows"):
            if getattr(distributed, name) != type(distributed).model_fields[name].default:
                raise ConfigError(
                    f"distributed.{name}={getattr(distributed, name)} is for mini-batches, but --full-graph "
                    f"trains the whole graph in every step: omit distributed.{name}"
                )
        if size % distributed.num_replicas:
            raise ConfigError(
                f"distributed.replication={distributed.num_replicas} does not divide the {size} ranks: "
                "start a multiple of it, or give another distributed.replication"
            )

    def _part(self) -> OpenPart:
        source, size = self.config.data.source, self.launch.size
        is_full_graph = self.config.sampler.whole_graph
        copies = self.config.distributed.num_replicas if is_full_graph else 1
        size //= copies
        # A folder of parts without partition.json is damaged.
        if not is_partition(Path(source)) and not (Path(source) / GRAPH).is_dir():
            check_name(source)
            raise DataError(
                f"{source}: {size * copies} ranks need a graph in {size} parts: write them with hyrt "
                f"partition --data {source} --parts {size} -o PARTS, and give --data PARTS"
            )
        parts = read_manifest(Path(source)).num_parts
        if parts % size:
            raise DataError(
                f"{source}: has {counted(parts, 'part')}, but there are {size * copies} ranks: start "
                f"{'one rank' if copies == 1 else f'{copies} ranks'} for each part, give all ranks equally "
                "many parts, or partition again"
            )
        rows = self.config.data.rows
        if rows != "stored":
            raise ConfigError(
                f"data.rows={rows} is for one process: for fewer bytes between ranks give "
                "distributed.wire=float16 or bfloat16, or partition a dataset of float16 rows (hyrt data "
                "convert --rows float16)"
            )
        if self.config.data.cache is not None:
            raise ConfigError(
                f"data.cache={self.config.data.cache} is for one process: for fewer bytes between ranks give "
                "distributed.cache"
            )
        rank = self.launch.rank // copies
        return open_part(source, rank, normalize=self.config.data.normalize, num_blocks=size)

    def _lead(
        self,
        ranks: JoinedRanks,
        prepared: PreparedRun,
        mine: RankPart,
        stop: AgreedStop,
        hooks: Sequence[Hook],
        seen: RankRun | None,
    ) -> int:
        with ExitStack() as stack:
            opened, is_new = self.folder(ranks.restarts)
            folder = stack.enter_context(opened)
            holder = stack.enter_context(locked(folder.path))
            progress = stack.enter_context(self.progress())
            for text in self.said:
                progress.handle(Notice(kind="info", text=text))
            checkpoint = None
            if not is_new:
                folder.remove_leftovers()
                checkpoint = newest_checkpoint(folder, progress)
                if checkpoint is not None:
                    check_same_training(self.config, checkpoint.state["config"])
            told_by_all(ranks.control, [os.fspath(folder.path.absolute()), holder])
            _send_checkpoint(ranks, checkpoint)
            mine.go_on_from(checkpoint)
            session = Session(
                *(self.config, mine.graph, folder, progress, stop),
                prepared=prepared,
                shared=mine.shared,
                predict=None if seen is None else lambda config, graph, sampler, say: seen.predict(say),
                hooks=hooks,
            )
            return session.run(checkpoint, is_new=is_new)

    def _follow(
        self,
        ranks: JoinedRanks,
        prepared: PreparedRun,
        mine: RankPart,
        stop: AgreedStop,
        hooks: Sequence[Hook],
    ) -> int:
        path, holder = told_by_all(ranks.control, None)[0]
        checkpoint = _receive_checkpoint(ranks)
        mine.go_on_from(checkpoint)
        leader = LostLeader(Path(path), holder)

        def print_warning(event: Event) -> None:
            # Rank 0 reports on the run, but has no warnings of this process.
            if isinstance(event, Notice) and event.kind == "warning":
                print(f"warning: {rank_prefix()}{event.text}", file=sys.stderr, flush=True)

        training = Training(
            compose_run(
                self.config,
                mine.graph,
                emit=print_warning,
                should_stop=lambda: stop.requested,
                on_stall=_print_stacks,
                hooks=[*hooks_of_environment(ranks.rank, ranks.size), *hooks],
                prepared=prepared,
                shared=replace(mine.shared, inherited=leader.folder),
            )
        )
        if checkpoint is not None:
            # The checkpoint's assignments are for rank 0's trainers.
            training.resume(
                Checkpoint(checkpoint.step, checkpoint.path, {**checkpoint.state, "balance": None})
            )
        stop.wait_for_step(lambda text: None, str)
        try:
            status = training.run().status
        except BaseException as error:
            if ranks.last_words.is_for_this_rank:
                leader.record(error, training.summary_of_failure)
            raise
        finally:
            leader.close()
        return stop.exit_code if status == "interrupted" else 0


def _select_edges(config: Config, graph: Graph, ranks: JoinedRanks, *, edges_are_split: bool) -> Graph:
    """Return the graph of a rank with the edges that the model reads, and how many others all ranks have."""
    found = PreparedRun(config, graph).graph
    if not edges_are_split:
        return found
    left_out = told_by_all(ranks.control, found.num_loops_left_out)
    return replace(found, num_loops_left_out=sum(left_out)) if any(left_out) else found


def _choose_algorithm(config: Config, ranks: JoinedRanks) -> tuple[Config, str, Network]:
    """Choose the fastest algorithm by the cost model, on rank 0.

    Returns the settings with the algorithm, the reason, and the measured network.
    """
    from hyrt.predict.calibrate.network import measure_network
    from hyrt.predict.ranks.chosen_algorithm import chosen_algorithm

    network = measure_network(ranks, "measured", _MEASURED_S).network
    choice = chosen_algorithm(config, ranks.size, network) if ranks.rank == 0 else None
    algorithm, replication, reason = told_by_all(ranks.control, choice)[0]
    distributed = config.distributed.model_copy(
        update={"algorithm": algorithm, "replication": replication if replication > 1 else None}
    )
    return config.model_copy(update={"distributed": distributed}), reason, network


def common_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must be equal on all ranks."""
    return {
        name: value
        for name, value in leaves(config.model_dump(mode="json"))
        if name in _COMMON_RUNTIME
        or not any(
            name == rank_setting or name.startswith(f"{rank_setting}.")
            for rank_setting in (*OWN_SETTINGS, "runtime", "balance")
        )
    }


def _send_checkpoint(ranks: JoinedRanks, checkpoint: Checkpoint | None) -> None:
    """Broadcast the file of the checkpoint to resume from."""
    name, data = b"", b""
    if checkpoint is not None:
        name, data = checkpoint.path.name.encode(), checkpoint.path.read_bytes()
    for payload in (name, data):
        ranks.control.from_first(torch.tensor([len(payload)]), "control")
        ranks.control.from_first(torch.from_numpy(np.frombuffer(payload, np.uint8).copy()), "control")


def _receive_checkpoint(ranks: JoinedRanks) -> Checkpoint | None:
    """Receive the checkpoint file that rank 0 broadcasts; None if there is none."""
    payloads: list[bytes] = []
    for _ in range(2):
        length = torch.zeros(1, dtype=torch.int64)
        ranks.control.from_first(length, "control")
        data = torch.empty(int(length), dtype=torch.uint8)
        ranks.control.from_first(data, "control")
        payloads.append(data.numpy().tobytes())
    name, data_bytes = payloads
    return checkpoint_of(Path(name.decode()), data_bytes) if name else None


def _print_stacks(stacks: str) -> None:
    print(f"{rank_prefix()}{stacks}", file=sys.stderr, flush=True)


def _schedule_exit(loss: RankLost) -> None:
    """End the process soon, even if the main thread hangs."""

    def exit_process() -> None:
        print(f"error: {rank_prefix()}{loss}", file=sys.stderr, flush=True)
        _exit_now(loss.exit_code)

    timer = threading.Timer(_EXIT_DELAY_S, exit_process)
    timer.daemon = True
    timer.start()


def _exit_now(code: int) -> NoReturn:
    """End the process at once; a normal exit might wait for lost ranks or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
