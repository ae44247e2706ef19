"""Context of one rank in a distributed run: rank, size, store, groups and heartbeat."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.byte_counts import ByteCounts
from hyrt.distributed.fellow_ranks import SILENT_S, FellowRanks
from hyrt.distributed.joining.found_store import found_store, keeper_of_store
from hyrt.distributed.joining.local_ranks import local_ranks_known
from hyrt.distributed.joining.meeting import meet
from hyrt.distributed.last_words import LastWords
from hyrt.distributed.launch import launched
from hyrt.distributed.rank_group import RankGroup
from hyrt.errors import ConfigError, HyrtError, RankLost, listed, one_line

_LEAVE_S = 5.0
# Ranks detect a stall within seconds of each other, and later on a busy machine.
_PEER_FAILURE_S = 6.0


class JoinedRanks:
    """One process among all processes that train one model together.

    Each thread that takes part in collective operations has its own group. The order of operations within a
    group is then the same at every rank, regardless of the threads' speeds.

    Parameters
    ----------
    store
        A store that all ranks can reach and that no other run has written to.
    rank, size
        Number of this rank, and number of ranks.
    timeout_s
        Longest time that ranks wait for each other, in seconds.
    silent_s
        Longest silence of a rank before it counts as lost, in seconds.
    on_loss
        Called in a separate thread when another rank is lost, with the error that ends the run.
    keeper
        Name of the process that hosts the store, for messages.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        silent_s: float = SILENT_S,
        on_loss: Callable[[RankLost], None] = lambda loss: None,
        keeper: str = "rank 0",
    ) -> None:
        self.rank = rank
        self.size = size
        self.restarts = 0
        """Highest number of launcher restarts of any rank; complete at rank 0 only."""
        self.counts = ByteCounts()
        self._store = store
        self._timeout_s = timeout_s
        self._report = on_loss
        # A separate connection: a blocking wait for a key occupies its connection to the store.
        self._heartbeat = FellowRanks(
            store.clone(), rank, size, self._abort, keeper, silent_s, lambda: self._operation_counts
        )
        self.last_words = LastWords(store.clone, rank, lambda: self._heartbeat.reachable)
        """Exchange of reports between the ranks of a failing run."""
        self._groups: list[RankGroup] = []
        self._joins: set[threading.Event] = set()
        self._has_join_thread = False
        # Start before the groups are created: creating a group waits for all ranks.
        self._heartbeat.start()
        try:
            self.control = self.group("control")
            """Group of the thread that drives the run, for agreements and evaluation."""
            self.gradients = self.group("gradients")
            """Group of the thread that drives the run, for gradient sums."""
            self.rows = self.group("rows")
            """Group of the load stage, for feature rows."""
        except BaseException as error:
            if self._heartbeat.known_loss is None:
                # For example a missing network interface: the other ranks are waiting for this rank.
                self._heartbeat.tell_failure(error)
            self.close()
            raise

    @property
    def _operation_counts(self) -> dict[str, int]:
        return {group.name: group.begun for group in list(self._groups)}

    @property
    def leaves_work_behind(self) -> bool:
        """Whether the process must exit without the regular shutdown of torch and Python.

        Torch would wait for other ranks, and a thread that is blocked in a call to the store would abort the
        process.
        """
        has_threads = self._has_join_thread or self._heartbeat.is_left_behind
        return has_threads or any(group.is_left_behind for group in self._groups)

    def tell_failure(self, error: BaseException) -> None:
        """End all ranks because this rank fails, and abort the operations that this rank waits for."""
        if not isinstance(error, RankLost):
            self._heartbeat.tell_failure(error)
        aborted = RankLost(f"aborted because this rank has failed: {error}")
        for group in self._groups:
            # Every thread that can end the run must report the original cause.
            group.give_up(error if isinstance(error, HyrtError) else aborted)

    def why_held_up(self) -> RankLost | None:
        """Return the failure of another rank that this rank's pending operation waits for.

        None if no operation is pending, or if no rank reports a failure within a few seconds.
        """
        if not any(group.is_waiting for group in self._groups):
            return None
        return self._heartbeat.loss_within(_PEER_FAILURE_S)

    def wait_until_known(self) -> None:
        """Wait briefly until all other ranks have acknowledged the failure in the store of this process."""
        self._heartbeat.wait_until_known()

    def agree(self, subject: str, facts: Mapping[str, Any]) -> None:
        """Check that values are equal at every rank.

        Parameters
        ----------
        subject
            Name of the compared values; each name can be used once.
        facts
            Plain values by name.

        Raises
        ------
        ConfigError
            If a value differs: names the value, the rank that differs from rank 0, and both values.
        """
        values = {name: json.dumps(value, default=str) for name, value in facts.items()}
        self._store.set(f"{subject}/{self.rank}", json.dumps(values))
        keys = [f"{subject}/{rank}" for rank in range(self.size)]
        self._wait_for(keys, f"comparing the {subject}")
        all_values = [json.loads(self._store.get(key)) for key in keys]
        self._wait_for_readers(subject)
        first = all_values[0]
        for rank, other in enumerate(all_values):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise ConfigError(
                        f"{name} is {other.get(name)} at rank {rank}, but {first.get(name)} at rank 0: start "
                        f"all ranks with the same {subject}"
                    )

    def _wait_for(self, keys: list[str], doing: str) -> None:
        """Wait until all ranks have written their keys; unlike `store.wait`, fail if a rank is lost."""
        end = time.monotonic() + self._timeout_s
        try:
            while not self._store.check(keys):
                if self._heartbeat.known_loss is not None:
                    raise self._heartbeat.known_loss
                if time.monotonic() > end:
                    late = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                    raise RankLost(f"rank {listed(late)} did not reach {doing} within {self._timeout_s:g} s")
                time.sleep(0.01)
        except (dist.DistError, RuntimeError) as error:
            raise self._heartbeat.loss(doing, error) from error

    def _wait_for_readers(self, subject: str) -> None:
        """Wait at rank 0 until the other ranks have read the store, which may end with rank 0."""
        self._store.set(f"{subject}/read/{self.rank}", "")
        if self.rank == 0:
            with contextlib.suppress(dist.DistError, RuntimeError):
                readers = [f"{subject}/read/{rank}" for rank in range(self.size)]
                self._store.wait(readers, timedelta(seconds=min(self._timeout_s, _LEAVE_S)))

    def leave(self) -> None:
        """Shut down together: wait until all ranks are done."""
        self.control.add(torch.zeros(1), "control")
        self._heartbeat.close()
        self._heartbeat.tell_end()
        # Rank 0's process may host the store.
        end = time.monotonic() + _LEAVE_S
        keys = [f"beat/{rank}" for rank in range(self.size)]
        with contextlib.suppress(dist.DistError, RuntimeError):
            while self.rank == 0 and time.monotonic() < end:
                if all(self._store.get(key) == b"done" for key in keys):
                    return
                time.sleep(0.01)

    def close(self) -> None:
        """Stop the threads; no communication may follow."""
        self._heartbeat.close()
        for group in self._groups:
            group.close()

    def _abort(self, failure: RankLost) -> None:
        for group in self._groups:
            group.give_up(failure)
        for is_done in list(self._joins):
            is_done.set()
        self._report(failure)

    def group(self, name: str, members: Sequence[int] | None = None) -> RankGroup:
        """Create a group for one more thread.

        Parameters
        ----------
        name
            Purpose of the group; disjoint groups need different names too.
        members
            Member ranks, in the order of their numbers in the group; each rank must call this method at
            the
            same time. Default: all ranks.
        """
        make = partial(
            RankGroup,
            name,
            self._store,
            self.rank if members is None else members.index(self.rank),
            self.size if members is None else len(members),
            timeout_s=self._timeout_s,
            counts=self.counts,
            lost=partial(self._heartbeat.loss, group=name),
        )
        started_at = time.monotonic()
        try:
            group = self._create_group(make)
        except (dist.DistError, RuntimeError) as error:
            if self._heartbeat.known_loss is not None:
                raise self._heartbeat.known_loss from error
            is_late = time.monotonic() - started_at > self._timeout_s / 2
            raise RankLost(
                f"the ranks could not be joined{f' within {self._timeout_s:g} s' if is_late else ''}: "
                f"{one_line(str(error))}. Check that all of them have started, and GLOO_SOCKET_IFNAME, which "
                "names the network interface"
            ) from error
        self._groups.append(group)
        if self._heartbeat.known_loss is not None:
            group.give_up(self._heartbeat.known_loss)
        return group

    def _create_group(self, make: Callable[[], RankGroup]) -> RankGroup:
        """Create a group with all its members; raise at once if a rank is lost meanwhile."""
        outcome: list[RankGroup | Exception] = []
        is_done = threading.Event()

        def join() -> None:
            try:
                outcome.append(make())
            except Exception as error:
                outcome.append(error)
            is_done.set()

        self._joins.add(is_done)
        # A thread that waits in there cannot be interrupted before the timeout.
        threading.Thread(target=join, name="hyrt.ranks.join", daemon=True).start()
        if self._heartbeat.known_loss is None:
            is_done.wait()
        self._joins.remove(is_done)
        if not outcome:
            self._has_join_thread = True
            assert self._heartbeat.known_loss is not None
            raise self._heartbeat.known_loss
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]


@contextmanager
def joined_by_launcher(
    *, timeout_s: float, on_loss: Callable[[RankLost], None] = lambda loss: None
) -> Iterator[JoinedRanks]:
    """Join the processes that torchrun or another launcher has started, and leave them when the block ends.

    A failure in the block is reported to all ranks.

    Parameters
    ----------
    timeout_s, on_loss
        Arguments of `JoinedRanks`.

    Raises
    ------
    RankLost
        If the ranks cannot be joined, or a rank is lost.
    """
    keeper = keeper_of_store()
    store, rank, size = found_store(timeout_s, keeper)
    launch = launched()
    restarts = 0 if launch is None else launch.restarts
    try:
        # torchrun's store still holds the keys of earlier attempts.
        result = meet(PrefixStore("hyrt", store), rank, size, restarts, timeout_s)
    except (dist.DistError, RuntimeError) as error:
        raise RankLost(
            f"{keeper} was lost: it keeps the store of the ranks ({one_line(str(error))})"
        ) from error
    ranks = JoinedRanks(
        PrefixStore(f"hyrt/{result.name}", store),
        rank,
        size,
        timeout_s=timeout_s,
        on_loss=on_loss,
        keeper=keeper,
    )
    ranks.restarts = result.restarts
    try:
        with local_ranks_known(ranks.control):
            yield ranks
        ranks.leave()
    except BaseException as error:
        ranks.tell_failure(error)
        if keeper == f"rank {rank}":
            ranks.wait_until_known()
        raise
    finally:
        ranks.close()
