"""One rank of a distributed run: what joins it to the others, from its start to its end."""

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
# Ranks notice within seconds of each other that nothing moves; busy machines look late.
_HEAR_S = 6.0


class JoinedRanks:
    """One process among all that train one model together.

    Each thread that takes part in collective operations has a group of its own, so that the order within
    each is the same at every rank whatever the threads' speeds are.

    Parameters
    ----------
    store
        A store that all ranks reach, in which no other run has written.
    rank, size
        The number of this rank, and how many there are.
    timeout_s
        Longest time that ranks wait for each other.
    silent_s
        For how long nothing may be heard of a rank before it counts as lost.
    on_loss
        Called in a thread of its own when another rank is lost, with the error that the run then ends with.
    keeper
        Whose process keeps the store, for messages.
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
        """How often the launcher has started one of the ranks again, at most; only rank 0 knows it of all."""
        self.counts = ByteCounts()
        self._store = store
        self._timeout_s = timeout_s
        self._report = on_loss
        # Over a connection of its own: whoever waits for a key in a store has its connection for as long.
        self._fellows = FellowRanks(
            store.clone(), rank, size, self._lose, keeper, silent_s, lambda: self._begun
        )
        self.last_words = LastWords(store.clone, rank, lambda: self._fellows.reachable)
        """Takes what this rank has to say of a run that fails."""
        self._groups: list[RankGroup] = []
        self._joins: set[threading.Event] = set()
        self._is_joining_left = False
        # Before the groups: to make one is to wait for all ranks.
        self._fellows.start()
        try:
            self.control = self.group("control")
            """For the thread that drives the run: agreements, evaluations."""
            self.gradients = self.group("gradients")
            """For the thread that drives the run: the sums of a step."""
            self.rows = self.group("rows")
            """For the load stage: the rows of a step."""
        except BaseException as error:
            if self._fellows.known_loss is None:
                # Such as of a network interface that is not there: the others wait for this one.
                self._fellows.tell_failure(error)
            self.close()
            raise

    @property
    def _begun(self) -> dict[str, int]:
        return {group.name: group.begun for group in list(self._groups)}

    @property
    def leaves_work_behind(self) -> bool:
        """Whether the process has to end without torch's own end, and without Python's.

        Torch would wait for other ranks, and a thread that is in a call to the store would abort the process.
        """
        left = self._is_joining_left or self._fellows.is_left_behind
        return left or any(group.is_left_behind for group in self._groups)

    def tell_failure(self, error: BaseException) -> None:
        """Let all ranks end because this one fails; what it waits for is given up."""
        if not isinstance(error, RankLost):
            self._fellows.tell_failure(error)
        given_up = RankLost(f"given up, because this rank has failed: {error}")
        for group in self._groups:
            # Whichever thread ends the run is to name the cause.
            group.give_up(error if isinstance(error, HyrtError) else given_up)

    def why_held_up(self) -> RankLost | None:
        """Why another rank does not come to what this one waits for; None if it waits for none, or if none of
        them says so within a moment.
        """
        if not any(group.is_waiting for group in self._groups):
            return None
        return self._fellows.loss_within(_HEAR_S)

    def wait_until_known(self) -> None:
        """Wait a moment until all others know that the run fails, where they read it in this process."""
        self._fellows.wait_until_known()

    def agree(self, subject: str, facts: Mapping[str, Any]) -> None:
        """Compare what has to be the same at every rank.

        Parameters
        ----------
        subject
            What the facts are of, in a word that is used once.
        facts
            Plain values by name.

        Raises
        ------
        ConfigError
            Naming a fact, a rank that differs from rank 0, and both values.
        """
        mine = {name: json.dumps(value, default=str) for name, value in facts.items()}
        self._store.set(f"{subject}/{self.rank}", json.dumps(mine))
        keys = [f"{subject}/{rank}" for rank in range(self.size)]
        self._wait_for(keys, f"comparing the {subject}")
        others = [json.loads(self._store.get(key)) for key in keys]
        self._wait_for_readers(subject)
        first = others[0]
        for rank, other in enumerate(others):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise ConfigError(
                        f"{name} is {other.get(name)} at rank {rank}, but {first.get(name)} at rank 0: start "
                        f"all ranks with the same {subject}"
                    )

    def _wait_for(self, keys: list[str], doing: str) -> None:
        """Until all ranks have written, or one is lost: `store.wait` would not hear of that."""
        end = time.monotonic() + self._timeout_s
        try:
            while not self._store.check(keys):
                if self._fellows.known_loss is not None:
                    raise self._fellows.known_loss
                if time.monotonic() > end:
                    late = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                    raise RankLost(f"rank {listed(late)} did not come to {doing} in {self._timeout_s:g} s")
                time.sleep(0.01)
        except (dist.DistError, RuntimeError) as error:
            raise self._fellows.loss(doing, error) from error

    def _wait_for_readers(self, subject: str) -> None:
        """The store may end with rank 0, so that waits until the others have read what is there."""
        self._store.set(f"{subject}/read/{self.rank}", "")
        if self.rank == 0:
            with contextlib.suppress(dist.DistError, RuntimeError):
                readers = [f"{subject}/read/{rank}" for rank in range(self.size)]
                self._store.wait(readers, timedelta(seconds=min(self._timeout_s, _LEAVE_S)))

    def leave(self) -> None:
        """End together: nobody goes before all are done."""
        self.control.add(torch.zeros(1), "control")
        self._fellows.close()
        self._fellows.tell_end()
        # The store may live in rank 0's process.
        end = time.monotonic() + _LEAVE_S
        keys = [f"beat/{rank}" for rank in range(self.size)]
        with contextlib.suppress(dist.DistError, RuntimeError):
            while self.rank == 0 and time.monotonic() < end:
                if all(self._store.get(key) == b"done" for key in keys):
                    return
                time.sleep(0.01)

    def close(self) -> None:
        """End the threads: nothing travels any more."""
        self._fellows.close()
        for group in self._groups:
            group.close()

    def _lose(self, loss: RankLost) -> None:
        for group in self._groups:
            group.give_up(loss)
        for joined in list(self._joins):
            joined.set()
        self._report(loss)

    def group(self, name: str, members: Sequence[int] | None = None) -> RankGroup:
        """A group for one more thread.

        Parameters
        ----------
        name
            The purpose; groups that have no rank in common have names of their own, too.
        members
            The ranks in it, in the order of their numbers in the group; each of them asks for it at once.
            All by default.
        """
        make = partial(
            RankGroup,
            name,
            self._store,
            self.rank if members is None else members.index(self.rank),
            self.size if members is None else len(members),
            timeout_s=self._timeout_s,
            counts=self.counts,
            lost=partial(self._fellows.loss, group=name),
        )
        began = time.monotonic()
        try:
            group = self._joined(make)
        except (dist.DistError, RuntimeError) as error:
            if self._fellows.known_loss is not None:
                raise self._fellows.known_loss from error
            is_late = time.monotonic() - began > self._timeout_s / 2
            raise RankLost(
                f"the ranks could not be joined{f' within {self._timeout_s:g} s' if is_late else ''}: "
                f"{one_line(str(error))}. Check that all of them have started, and GLOO_SOCKET_IFNAME, which "
                "names the network interface"
            ) from error
        self._groups.append(group)
        if self._fellows.known_loss is not None:
            group.give_up(self._fellows.known_loss)
        return group

    def _joined(self, make: Callable[[], RankGroup]) -> RankGroup:
        """The group, once all ranks have come; what is raised where one is lost before names it at once."""
        made: list[RankGroup | Exception] = []
        over = threading.Event()

        def join() -> None:
            try:
                made.append(make())
            except Exception as error:
                made.append(error)
            over.set()

        self._joins.add(over)
        # Nothing frees a thread that waits in there before the time is over.
        threading.Thread(target=join, name="hyrt.ranks.join", daemon=True).start()
        if self._fellows.known_loss is None:
            over.wait()
        self._joins.remove(over)
        if not made:
            self._is_joining_left = True
            assert self._fellows.known_loss is not None
            raise self._fellows.known_loss
        if isinstance(made[0], Exception):
            raise made[0]
        return made[0]


@contextmanager
def joined_by_launcher(
    *, timeout_s: float, on_loss: Callable[[RankLost], None] = lambda loss: None
) -> Iterator[JoinedRanks]:
    """Join the processes that torchrun, or another launcher, has started; leave them at the block's end.

    A failure in the block is told to all ranks.

    Parameters
    ----------
    timeout_s, on_loss
        The arguments of `JoinedRanks`.

    Raises
    ------
    RankLost
        If the ranks cannot be joined, or one of them is lost.
    """
    keeper = keeper_of_store()
    store, rank, size = found_store(timeout_s, keeper)
    launch = launched()
    restarts = 0 if launch is None else launch.restarts
    try:
        # torchrun's store has what the ranks of earlier attempts have written.
        met = meet(PrefixStore("hyrt", store), rank, size, restarts, timeout_s)
    except (dist.DistError, RuntimeError) as error:
        raise RankLost(
            f"{keeper} was lost: it keeps the store of the ranks ({one_line(str(error))})"
        ) from error
    ranks = JoinedRanks(
        PrefixStore(f"hyrt/{met.name}", store),
        rank,
        size,
        timeout_s=timeout_s,
        on_loss=on_loss,
        keeper=keeper,
    )
    ranks.restarts = met.restarts
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
