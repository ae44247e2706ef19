"""Context of one rank in a distributed run: rank, size, store, groups and heartbeat."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.heartbeat import MAX_SILENCE_S, FailureReportExchange, HeartbeatMonitor
from hyrt.distributed.launch import launch_info_from_env
from hyrt.distributed.process_group import RankGroup, TrafficCounters, all_gather_object
from hyrt.distributed.rendezvous import connect_store, join_ranks, store_host_name
from hyrt.errors import ConfigError, HyrtError, RankFailureError, join_names, one_line
from hyrt.runtime.hardware import LOCAL_RANKS_VARIABLE, num_local_ranks

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@contextmanager
def set_local_world_size(group: RankGroup) -> Iterator[None]:
    """Set LOCAL_WORLD_SIZE within the block to the number of ranks on this machine, as torchrun does.

    Without a launcher, the variable is unset. If several launchers run on one machine, each of them counts
    only its own ranks. `group` has all ranks, and all ranks must call this function at the same time.
    """
    machines = all_gather_object(group, machine_identity())
    count = max(machines.count(machines[group.rank]), num_local_ranks())
    previous = os.environ.get(LOCAL_RANKS_VARIABLE)
    os.environ[LOCAL_RANKS_VARIABLE] = str(count)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[LOCAL_RANKS_VARIABLE]
        else:
            os.environ[LOCAL_RANKS_VARIABLE] = previous


def machine_identity() -> list[Any]:
    """Return values that identify this machine: they are equal for any two processes on it.

    Containers and emulated nodes have separate network namespaces and count as machines.
    """
    try:
        namespace = os.stat(_NETWORK)
        return [_BOOT.read_text().strip(), namespace.st_dev, namespace.st_ino]
    except OSError:
        return [platform.node()]


_LEAVE_S = 5.0
# Ranks detect a stall within seconds of each other, and later on a busy machine.
_PEER_FAILURE_S = 6.0


class DistributedContext:
    """Membership of this process in a run that several processes train together.

    Each thread that takes part in collective operations has its own group, so that the order of operations
    within a group is the same at every rank, regardless of thread timing.

    No earlier run may have written to `store`. Ranks wait for each other for at most `timeout_s` seconds, and
    a rank counts as lost after `max_silence_s` seconds without a heartbeat. `on_peer_failure` is then called
    in a separate thread with the error that ends the run. `store_host` names the process that hosts the
    store, for messages.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        max_silence_s: float = MAX_SILENCE_S,
        on_peer_failure: Callable[[RankFailureError], None] = lambda loss: None,
        store_host: str = "rank 0",
    ) -> None:
        self.rank = rank
        self.size = size
        self.restarts = 0
        """Highest number of launcher restarts of any rank; only rank 0 knows the values of all ranks."""
        self.counts = TrafficCounters()
        self._store = store
        self._timeout_s = timeout_s
        self._report = on_peer_failure
        # Use a separate connection, because a blocking wait for a key occupies its connection to the store.
        self._heartbeat = HeartbeatMonitor(
            store.clone(), rank, size, self._abort, store_host, max_silence_s, lambda: self._operation_counts
        )
        self.failure_reports = FailureReportExchange(store.clone, rank, lambda: self._heartbeat.reachable)
        """Exchange of reports between the ranks of a failing run."""
        self._groups: list[RankGroup] = []
        self._joins: set[threading.Event] = set()
        self._has_join_thread = False
        # Start before the groups are created: creating a group waits for all ranks.
        self._heartbeat.start()
        try:
            self.control = self.group("control")
            """Group of the main thread of the run, for agreements and evaluation."""
            self.gradients = self.group("gradients")
            """Group of the main thread of the run, for gradient sums."""
            self.rows = self.group("rows")
            """Group of the thread of the load stage, for feature rows."""
        except BaseException as error:
            if self._heartbeat.peer_failure is None:
                # The other ranks are waiting for this rank, which may be the only one that has failed.
                self._heartbeat.broadcast_failure(error)
            self.close()
            raise

    @property
    def _operation_counts(self) -> dict[str, int]:
        return {group.name: group.num_started for group in list(self._groups)}

    @property
    def needs_hard_exit(self) -> bool:
        """Whether the process must exit without the regular shutdown of torch and Python.

        Otherwise torch would wait for other ranks, and a thread that is blocked in a call to the store would
        abort the process.
        """
        has_threads = self._has_join_thread or self._heartbeat.has_live_threads
        return has_threads or any(group.has_live_operations for group in self._groups)

    def broadcast_failure(self, error: BaseException) -> None:
        """End the run at all ranks because this rank has failed, and abort its pending operations."""
        if not isinstance(error, RankFailureError):
            self._heartbeat.broadcast_failure(error)
        aborted = RankFailureError(f"aborted because this rank has failed: {error}")
        for group in self._groups:
            # Whichever thread ends the run must report the original cause.
            group.abort(error if isinstance(error, HyrtError) else aborted)

    def stall_reason(self) -> RankFailureError | None:
        """Return the failure of the rank that blocks this rank's pending operation.

        Returns None if no operation is pending, or if no rank reports a failure within a few seconds.
        """
        if not any(group.is_waiting for group in self._groups):
            return None
        return self._heartbeat.wait_for_peer_failure(_PEER_FAILURE_S)

    def wait_until_acknowledged(self) -> None:
        """Wait briefly until all other ranks have acknowledged the failure, before the store disappears."""
        self._heartbeat.wait_until_acknowledged()

    def check_equal(self, subject: str, facts: Mapping[str, Any]) -> None:
        """Check that named values are equal at all ranks. Each `subject` can be used only once.

        Raises ConfigError for a value that differs from rank 0's, with its name, the rank and both values.
        """
        values = {name: json.dumps(value, default=str) for name, value in facts.items()}
        self._store.set(f"{subject}/{self.rank}", json.dumps(values))
        keys = [f"{subject}/{rank}" for rank in range(self.size)]
        self._wait_for(keys, f"the comparison of the {subject}")
        all_values = [json.loads(self._store.get(key)) for key in keys]
        self._wait_for_readers(subject)
        first = all_values[0]
        for rank, other in enumerate(all_values):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise ConfigError(
                        f"{name} is {other.get(name)} on rank {rank}, but {first.get(name)} on rank 0: "
                        f"start all ranks with the same {subject}"
                    )

    def _wait_for(self, keys: list[str], doing: str) -> None:
        """Wait until all ranks have written their keys. Unlike `store.wait`, fail if a rank is lost."""
        end = time.monotonic() + self._timeout_s
        try:
            while not self._store.check(keys):
                if self._heartbeat.peer_failure is not None:
                    raise self._heartbeat.peer_failure
                if time.monotonic() > end:
                    late = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                    raise RankFailureError(
                        f"rank {join_names(late)} did not reach {doing} within {self._timeout_s:g} s"
                    )
                time.sleep(0.01)
        except (dist.DistError, RuntimeError) as error:
            raise self._heartbeat.diagnose_failure(doing, error) from error

    def _wait_for_readers(self, subject: str) -> None:
        """Wait at rank 0 until the other ranks have read the store, which may disappear when rank 0 exits."""
        self._store.set(f"{subject}/read/{self.rank}", "")
        if self.rank == 0:
            with contextlib.suppress(dist.DistError, RuntimeError):
                readers = [f"{subject}/read/{rank}" for rank in range(self.size)]
                self._store.wait(readers, timedelta(seconds=min(self._timeout_s, _LEAVE_S)))

    def shut_down(self) -> None:
        """Wait until all ranks are done, and shut down together."""
        self.control.all_reduce(torch.zeros(1), "control")
        self._heartbeat.close()
        self._heartbeat.announce_shutdown()
        # Rank 0's process may host the store, which the other ranks need until they are done.
        end = time.monotonic() + _LEAVE_S
        keys = [f"beat/{rank}" for rank in range(self.size)]
        with contextlib.suppress(dist.DistError, RuntimeError):
            while self.rank == 0 and time.monotonic() < end:
                if all(self._store.get(key) == b"done" for key in keys):
                    return
                time.sleep(0.01)

    def close(self) -> None:
        """Stop the threads. No communication is possible afterwards."""
        self._heartbeat.close()
        for group in self._groups:
            group.close()

    def _abort(self, failure: RankFailureError) -> None:
        for group in self._groups:
            group.abort(failure)
        for is_done in list(self._joins):
            is_done.set()
        self._report(failure)

    def group(self, name: str, members: Sequence[int] | None = None) -> RankGroup:
        """Create a group for another thread.

        Every group needs a unique name, even if groups are disjoint. `members` are the ranks of the group in
        group order, by default all ranks; all members must call this method at the same time.
        """
        make = partial(
            RankGroup,
            name,
            self._store,
            self.rank if members is None else members.index(self.rank),
            self.size if members is None else len(members),
            timeout_s=self._timeout_s,
            counts=self.counts,
            make_error=partial(self._heartbeat.diagnose_failure, group=name),
        )
        started_at = time.monotonic()
        try:
            group = self._create_group(make)
        except (dist.DistError, RuntimeError) as error:
            if self._heartbeat.peer_failure is not None:
                raise self._heartbeat.peer_failure from error
            is_late = time.monotonic() - started_at > self._timeout_s / 2
            raise RankFailureError(
                "the ranks could not connect to each "
                f"other{f' within {self._timeout_s:g} s' if is_late else ''} ({one_line(str(error))}): "
                "check that all of them have started, and that GLOO_SOCKET_IFNAME names the right network "
                "interface"
            ) from error
        self._groups.append(group)
        if self._heartbeat.peer_failure is not None:
            group.abort(self._heartbeat.peer_failure)
        return group

    def _create_group(self, make: Callable[[], RankGroup]) -> RankGroup:
        """Create a group with all its members; fail at once if a rank is lost in the meantime."""
        outcome: list[RankGroup | Exception] = []
        is_done = threading.Event()

        def join() -> None:
            try:
                outcome.append(make())
            except Exception as error:
                outcome.append(error)
            is_done.set()

        self._joins.add(is_done)
        # A thread that waits inside torch cannot be interrupted before the timeout.
        threading.Thread(target=join, name="hyrt.ranks.join", daemon=True).start()
        if self._heartbeat.peer_failure is None:
            is_done.wait()
        self._joins.remove(is_done)
        if not outcome:
            self._has_join_thread = True
            assert self._heartbeat.peer_failure is not None
            raise self._heartbeat.peer_failure
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]


@contextmanager
def init_from_launcher(
    *, timeout_s: float, on_peer_failure: Callable[[RankFailureError], None] = lambda loss: None
) -> Iterator[DistributedContext]:
    """Join the processes that torchrun or another launcher has started, and leave them when the block ends.

    A failure in the block is reported to all ranks. `timeout_s` and `on_peer_failure` are as in
    `DistributedContext`. Raises RankFailureError if the ranks cannot be joined, or a rank is lost.
    """
    keeper = store_host_name()
    store, rank, size = connect_store(timeout_s, keeper)
    launch = launch_info_from_env()
    restarts = 0 if launch is None else launch.restarts
    try:
        # torchrun's store still holds the keys of earlier attempts.
        result = join_ranks(PrefixStore("hyrt", store), rank, size, restarts, timeout_s)
    except (dist.DistError, RuntimeError) as error:
        raise RankFailureError(
            f"{keeper} was lost: it hosts the ranks' store ({one_line(str(error))})"
        ) from error
    ranks = DistributedContext(
        PrefixStore(f"hyrt/{result.name}", store),
        rank,
        size,
        timeout_s=timeout_s,
        on_peer_failure=on_peer_failure,
        store_host=keeper,
    )
    ranks.restarts = result.restarts
    try:
        with set_local_world_size(ranks.control):
            yield ranks
        ranks.shut_down()
    except BaseException as error:
        ranks.broadcast_failure(error)
        if keeper == f"rank {rank}":
            ranks.wait_until_acknowledged()
        raise
    finally:
        ranks.close()
