"""Rendezvous of the processes that a launcher has started, and failure reports from a rank that cannot join.

torchrun uses one store for all attempts of a run, so keys of earlier processes must be told apart from
current keys.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hyrt.distributed.heartbeat import HEARTBEAT_S, MAX_SILENCE_S, HeartbeatMonitor
from hyrt.distributed.launch import launch_info_from_env
from hyrt.errors import ConfigError, HyrtError, RankFailureError, join_names, one_line


def store_host_name() -> str:
    """Return the name of the process that hosts the store, for messages."""
    return "torchrun" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"


def connect_store(timeout_s: float, store_host: str) -> tuple[Any, int, int]:
    """Connect to the store that the environment specifies; return it, this rank and the number of ranks.

    `store_host` is the result of `store_host_name`. Raises RankFailureError if the store cannot be reached or
    hosted within `timeout_s` seconds.
    """
    outcome: list[tuple[Any, int, int] | Exception] = []

    def connect() -> None:
        try:
            # torch retries once and then logs the failure. With twice the time, this function fails first.
            outcome.append(_store_from_env(store_host, timedelta(seconds=2 * timeout_s)))
        except (dist.DistError, RuntimeError, ValueError) as error:
            outcome.append(error)

    connector = threading.Thread(target=connect, name="hyrt.ranks.store", daemon=True)
    connector.start()
    connector.join(timeout_s)
    first = outcome[0] if outcome else TimeoutError("nothing answers")
    if isinstance(first, tuple):
        return first
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if store_host != f"rank {os.environ['RANK']}":
        raise RankFailureError(
            f"the ranks' store at {address}, which {store_host} hosts, could not be reached within "
            f"{timeout_s:g} s ({one_line(str(first))}): check MASTER_ADDR and MASTER_PORT, that "
            f"{store_host} has started, and that no firewall blocks the connection"
        ) from first
    raise RankFailureError(
        f"the ranks' store cannot be hosted at {address} ({one_line(str(first))}): check MASTER_ADDR, and "
        "that MASTER_PORT is free"
    ) from first


def _store_from_env(keeper: str, timeout: timedelta) -> tuple[Any, int, int]:
    if keeper == "torchrun":
        store, rank, size = next(iter(rendezvous("env://", timeout=timeout)))
        return store, rank, size
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torch's rendezvous would wait here for all ranks and could not report which rank is missing.
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch gives it a name there without exporting it.
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )
    return store, rank, size


_POLL_S = 0.02
_PUBLISH_S = 1.0
# Time that rank 0 waits for late ranks after another rank has failed or is lost.
_GRACE_S = 2.0


class RendezvousResult(NamedTuple):
    name: str
    """Unique name of this attempt to start the run, which is the same at all ranks."""
    restarts: int
    """Highest number of launcher restarts of any rank; only rank 0 knows the values of all ranks."""


def join_ranks(
    store: Any, rank: int, size: int, restarts: int, timeout_s: float, max_silence_s: float = MAX_SILENCE_S
) -> RendezvousResult:
    """Wait at most `timeout_s` seconds until all ranks of this attempt have joined.

    Each rank writes a unique token. Rank 0 publishes the list of all tokens that it reads, until every other
    rank has found its token in the list and confirmed this with rank 0's token. Tokens of earlier processes
    are never confirmed. Meanwhile rank 0 sends heartbeats and checks the heartbeats of the ranks that have
    joined, under the keys of `HeartbeatMonitor`.

    `store` has the methods `set`, `get` and `check`. `restarts` is the number of times that the launcher has
    restarted this rank. Rank 0 counts a rank as lost after `max_silence_s` seconds without a heartbeat.
    Raises RankFailureError, which names the ranks, if ranks did not join, failed or were lost, and
    ConfigError if ranks disagree about the number of ranks.
    """
    token = f"{uuid.uuid4().hex} {restarts}"
    end = time.monotonic() + timeout_s
    if rank == 0:
        return _confirm_tokens(store, token, size, end, timeout_s, max_silence_s)
    store.set(f"word/{rank}", token)
    while True:
        first, *others = _read(store, "words").split("\n")
        if token in others and len(others) != size - 1:
            store.set(f"heard/{rank}", f"{first}\n{size}")
            raise _size_mismatch(rank, size, len(others) + 1)
        if len(others) == size - 1 and others[rank - 1] == token:
            name = first.partition(" ")[0]
            # Send a first heartbeat, so that the other ranks notice if this rank exits right after joining.
            store.set(f"{name}/beat/{rank}", "0 {}")
            store.set(f"heard/{rank}", first)
            return RendezvousResult(name, restarts)
        if time.monotonic() > end:
            raise RankFailureError(f"rank 0 did not join within {timeout_s:g} s: {_JOIN_HINT}")
        time.sleep(_POLL_S)


_JOIN_HINT = (
    "check that all ranks were started with the same number of machines and processes, MASTER_ADDR and "
    "MASTER_PORT, and that no firewall blocks the connection"
)


def _confirm_tokens(
    store: Any, token: str, size: int, end: float, timeout_s: float, silent_s: float
) -> RendezvousResult:
    others = range(1, size)
    name, published = token.partition(" ")[0], ""
    beats = _JoinHeartbeats(store, name, silent_s)
    error: RankFailureError | None = None
    while True:
        confirmations = [_read(store, f"heard/{rank}") for rank in others]
        # Read the tokens after the confirmations: a rank that has confirmed has written its token before.
        tokens = [token, *(_read(store, f"word/{rank}") for rank in others)]
        for rank, confirmation in zip(others, confirmations, strict=True):
            confirmed, _, other_size = confirmation.partition("\n")
            if confirmed == token and other_size:
                raise _size_mismatch(rank, int(other_size), size)
        if all(confirmation == token for confirmation in confirmations):
            return RendezvousResult(name, max(int(confirmation.partition(" ")[2]) for confirmation in tokens))
        beats.send()
        if error is None:
            joined = [
                rank
                for rank, confirmation in zip(others, confirmations, strict=True)
                if confirmation == token
            ]
            error = beats.failure_among(joined)
            # Ranks that start a little later can still join rank 0 and read the failure in the store.
            end = end if error is None else min(end, time.monotonic() + _GRACE_S)
        if published != (published := "\n".join(tokens)):
            store.set("words", published)
        if time.monotonic() > end:
            if error is not None:
                raise error
            late = [
                str(rank)
                for rank, confirmation in zip(others, confirmations, strict=True)
                if confirmation != token
            ]
            text = f"rank {join_names(late)} did not join within {timeout_s:g} s: {_JOIN_HINT}"
            if len(late) < len(confirmations):
                # Ranks that have joined read this failure from the store like any other, as long as this
                # process hosts it.
                store.set(f"{name}/lost", f"{late[0]}\n{text}")
                time.sleep(_PUBLISH_S)
            raise RankFailureError(text)
        time.sleep(_POLL_S)


class _JoinHeartbeats:
    """Heartbeats of rank 0 during the rendezvous, and a check of the joined ranks' heartbeats.

    `name` is the name of the attempt, and `silent_s` the longest time without a heartbeat, in seconds.
    """

    def __init__(self, store: Any, name: str, silent_s: float) -> None:
        self._store = store
        self._name = name
        self._silent_s = silent_s
        self._sent, self._sent_at = 0, 0.0
        self._received: dict[int, tuple[str, float]] = {}

    def send(self) -> None:
        """Send a heartbeat if it is due."""
        if time.monotonic() - self._sent_at >= HEARTBEAT_S:
            self._sent, self._sent_at = self._sent + 1, time.monotonic()
            self._store.set(f"{self._name}/beat/0", f"{self._sent} {{}}")

    def failure_among(self, joined: list[int]) -> RankFailureError | None:
        """Return and publish the error if a joined rank has failed or sends no heartbeats."""
        failed, _, reason = _read(self._store, f"{self._name}/failure").partition("\n")
        if failed:
            return RankFailureError(f"rank {failed} failed: {reason}")
        now = time.monotonic()
        for rank in joined:
            beat = _read(self._store, f"{self._name}/beat/{rank}")
            previous, received_at = self._received.get(rank, ("", now))
            if beat != previous:
                self._received[rank] = (beat, now)
            elif now - received_at > self._silent_s:
                text = f"rank {rank} was lost: no heartbeat was received for {self._silent_s:g} s"
                self._store.set(f"{self._name}/lost", f"{rank}\n{text}")
                return RankFailureError(text)
        return None


def _size_mismatch(rank: int, size: int, first_size: int) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is {size} on rank {rank}, but {first_size} on rank 0: start all ranks with the same "
        "WORLD_SIZE"
    )


def _read(store: Any, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


# All ranks must exit within ten seconds, of which importing torch takes some.
_TIME_LIMIT_S = 6.0


def report_join_failure(error: BaseException, time_limit_s: float = _TIME_LIMIT_S) -> None:
    """Join the other ranks only to report why this rank has failed.

    Gives up silently if they do not join within the time limit.
    """
    # Use a separate thread, because an unresponsive store may block its caller for longer.
    reporter = threading.Thread(
        target=_send_report, args=(error, time_limit_s), name="hyrt.ranks.unjoined", daemon=True
    )
    reporter.start()
    reporter.join(time_limit_s)


def _send_report(error: BaseException, timeout_s: float) -> None:
    # The reason has already been printed, so another message would only confuse.
    with suppress(HyrtError, DistError, RuntimeError):
        launch = launch_info_from_env()
        if launch is None:
            return
        keeper = store_host_name()
        store, rank, size = connect_store(timeout_s, keeper)
        result = join_ranks(PrefixStore("hyrt", store), rank, size, launch.restarts, timeout_s)
        heartbeat = HeartbeatMonitor(
            PrefixStore(f"hyrt/{result.name}", store), rank, size, lambda loss: None, keeper
        )
        heartbeat.broadcast_failure(error)
        if keeper == f"rank {rank}":
            heartbeat.wait_until_acknowledged()
