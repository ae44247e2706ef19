"""Emulated cluster on one machine, with one process per node and rate-limited links.

    python tools/distributed/cluster.py --nodes 4 --rate 200mbit -- python -m hyrt run --data parts/
    python tools/distributed/cluster.py --nodes 2 --rate 1gbit --both --logs out/ -- python worker.py

Every node is a network namespace with a separate interface, and a bridge in another namespace connects the
interfaces. No packet leaves these namespaces. The send rate of a node is limited (tc tbf), with `--both` also
the receive rate. Processes have torchrun's environment variables and a separate /dev/shm, so ranks on
different nodes cannot use shared memory. At the end, the bytes of each interface are printed and everything
is removed, even after a failure, Ctrl-C, SIGTERM or the time limit.

The nodes are simulated: they share the cores, the memory and the disk of this machine, and their links add no
latency. The tool requires root, `ip` and `tc` (iproute2); otherwise it prints the reason and exits with 77.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Self

SKIPPED = 77
_INTERFACE = "eth0"
_BRIDGE = "bridge"
_NETWORK = "10.53.0"
_PORT = 29400
_MAX_NODES = 200
_END_S = 5.0
_POLL_S = 0.05
# A kernel passes packets of up to 64 KiB to a limiter, a few hundred times per second.
_MIN_BURST_BYTES = 128 << 10
_BURST_S = 0.004
_QUEUE_S = 0.4
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
# `ip netns exec` gives each process a separate mount namespace.
_MOUNT_SHM = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """Result of the process on a node."""

    rank: int
    """Rank of the node."""
    code: int
    """Exit code, or the negative signal number if a signal ended the process."""
    ended_s: float
    """Seconds from the start of the processes to the exit of this one."""
    sent_bytes: int
    received_bytes: int
    """Number of bytes that the interface received, including headers; likewise `sent_bytes`."""


class ClusterError(Exception):
    """Failure of a command that sets up the cluster."""


class EmulatedCluster:
    """Context manager for an emulated cluster, whose nodes exist within the block.

    Parameters
    ----------
    nodes
        Number of nodes.
    bits_per_s
        Rate of each node's link; None for no limit.
    both
        Whether to limit the receive rate as well.
    """

    def __init__(self, nodes: int, bits_per_s: float | None = None, *, both: bool = False) -> None:
        if not 1 <= nodes <= _MAX_NODES:
            raise ValueError(f"the number of nodes must be from 1 to {_MAX_NODES}, got {nodes}")
        self._rate = bits_per_s
        self._both = both
        prefix = f"hyrt-{os.getpid()}"
        self._switch = f"{prefix}-switch"
        self.namespaces = [f"{prefix}-{rank}" for rank in range(nodes)]
        """Name of each node's network namespace."""
        self._made: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def run(
        self,
        command: Sequence[str],
        *,
        logs: Path | None = None,
        limit_s: float | None = None,
        grace_s: float = 15.0,
        environment: Mapping[str, str] | None = None,
    ) -> list[NodeEnd]:
        """Run a command on every node, and wait until all processes have ended.

        Parameters
        ----------
        command
            Command to run. The environment variable `RANK` contains the rank.
        logs
            Folder for the output of each rank, as `rank-0.log`; None prints the output here.
        limit_s
            Time limit in seconds; None for no limit.
        grace_s
            Seconds that the other processes have to exit after one has failed.
        environment
            Additional environment variables.
        """
        before = [self._bytes(rank) for rank in range(len(self.namespaces))]
        started = time.perf_counter()
        self._start(command, logs, {**os.environ, **(environment or {})})
        ended = self._wait(started, limit_s, grace_s)
        exits = []
        for rank, (code, ended_s) in enumerate(ended):
            sent, received = self._bytes(rank)
            exits.append(NodeEnd(rank, code, ended_s, sent - before[rank][0], received - before[rank][1]))
        return exits

    def cut_off(self, rank: int) -> None:
        """Disable the interface of a node, so that other nodes lose contact with this node."""
        _ip("-n", self.namespaces[rank], "link", "set", _INTERFACE, "down")

    def _make(self) -> None:
        self._add_namespace(self._switch)
        _ip("-n", self._switch, "link", "add", _BRIDGE, "type", "bridge")
        _ip("-n", self._switch, "link", "set", _BRIDGE, "up")
        for rank, name in enumerate(self.namespaces):
            self._add_namespace(name)
            port = f"port{rank}"
            ends = ("type", "veth", "peer", "name", _INTERFACE, "netns", name)
            _ip("-n", self._switch, "link", "add", port, *ends)
            _ip("-n", self._switch, "link", "set", port, "master", _BRIDGE, "up")
            _ip("-n", name, "address", "add", f"{_address(rank)}/24", "dev", _INTERFACE)
            _ip("-n", name, "link", "set", _INTERFACE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
            if self._rate is not None:
                _limit(name, _INTERFACE, self._rate)
                if self._both:
                    _limit(self._switch, port, self._rate)

    def _add_namespace(self, name: str) -> None:
        self._made.append(name)
        _ip("netns", "add", name)

    def _remove(self) -> None:
        """End running processes, and delete the namespaces together with interfaces and bridge."""
        held = (signal.SIGINT, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            self._end_all()
            for name in self._made:
                _kill_inside(name)
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            self._made = []
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)

    def _start(self, command: Sequence[str], logs: Path | None, environment: dict[str, str]) -> None:
        for rank, name in enumerate(self.namespaces):
            out = None if logs is None else _log(logs, rank)
            node_command = ["ip", "netns", "exec", name, "sh", "-c", _MOUNT_SHM, "sh", *command]
            process = subprocess.Popen(
                node_command,
                env=environment | self._variables(rank),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if out is None else subprocess.STDOUT,
                start_new_session=True,
            )
            if out is not None:
                out.close()
            self._processes.append(process)

    def _variables(self, rank: int) -> dict[str, str]:
        """Return the variables that torchrun sets on a node with one process."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.namespaces)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(len(self.namespaces)),
            "MASTER_ADDR": _address(0),
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": _INTERFACE,
        }

    def _wait(self, started: float, limit_s: float | None, grace_s: float) -> list[tuple[int, float]]:
        ended: dict[int, tuple[int, float]] = {}
        until = None if limit_s is None else started + limit_s
        while len(ended) < len(self._processes):
            now = time.perf_counter()
            for rank, process in enumerate(self._processes):
                if rank not in ended and process.poll() is not None:
                    ended[rank] = (process.returncode, now - started)
                    if process.returncode:
                        until = min(until or now + grace_s, now + grace_s)
            if until is not None and now > until:
                self._end_all()
            time.sleep(_POLL_S)
        self._processes = []
        return [ended[rank] for rank in range(len(ended))]

    def _end_all(self) -> None:
        """Send SIGTERM to the processes, and SIGKILL after some seconds."""
        for number, patience_s in ((signal.SIGTERM, _END_S), (signal.SIGKILL, _END_S)):
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            until = time.perf_counter() + patience_s
            while any(process.poll() is None for process in running) and time.perf_counter() < until:
                time.sleep(_POLL_S)

    def _bytes(self, rank: int) -> tuple[int, int]:
        """Return the bytes that a node has sent and received since its creation."""
        shown = _ip("-n", self.namespaces[rank], "-s", "-j", "link", "show", _INTERFACE)
        [counters] = [entry["stats64"] for entry in json.loads(shown)]
        return int(counters["tx"]["bytes"]), int(counters["rx"]["bytes"])


def unavailable_reason() -> str | None:
    """Return the reason why this machine cannot emulate a cluster, or None."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} is missing: install iproute2"
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    try:
        with EmulatedCluster(1, 1e9):
            return None
    except ClusterError as error:
        return str(error)


def rate(text: str) -> float:
    """Convert a rate such as `200mbit` or `1gbit` to bits per second."""
    for unit, factor in _UNITS.items():
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal() and float(number) > 0:
            return float(number) * factor
    raise ValueError(f"{text!r} is not a rate: use one such as 200mbit or 1gbit")


def _kill_inside(namespace: str) -> None:
    """End the processes in a node's namespace that have left the sessions of the node's processes."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for process in map(int, pids.stdout.split()):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _address(rank: int) -> str:
    return f"{_NETWORK}.{rank + 1}"


def _limit(namespace: str, interface: str, bits_per_s: float) -> None:
    burst = max(_MIN_BURST_BYTES, int(bits_per_s / 8 * _BURST_S))
    shape = ["rate", f"{bits_per_s:.0f}bit", "burst", f"{burst}b", "latency", f"{_QUEUE_S * 1e3:.0f}ms"]
    _output(["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *shape])


def _ip(*arguments: str) -> str:
    return _output(["ip", *arguments])


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _log(folder: Path, rank: int) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"rank-{rank}.log").open("wb")


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", type=rate, help="rate of each link, such as 200mbit; unlimited by default")
    parser.add_argument("--both", action="store_true", help="limit the receive rate as well")
    parser.add_argument("--logs", type=Path, help="folder for the output of each rank")
    parser.add_argument("--limit", type=float, help="time limit in seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object per rank")
    parser.add_argument("command", nargs="+", help="command that every node runs, after --")
    options = parser.parse_args(arguments)
    reason = unavailable_reason()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return SKIPPED
    signal.signal(signal.SIGTERM, _stop)
    try:
        with EmulatedCluster(options.nodes, options.rate, both=options.both) as cluster:
            ends = cluster.run(options.command, logs=options.logs, limit_s=options.limit)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    for end in ends:
        print(json.dumps(_facts(end)) if options.json else _line(end))
    failed = [end.code for end in sorted(ends, key=lambda end: end.ended_s) if end.code]
    return abs(failed[0]) if failed else 0


def _facts(end: NodeEnd) -> dict[str, Any]:
    return {name: getattr(end, name) for name in end.__slots__}


def _line(end: NodeEnd) -> str:
    return (
        f"rank {end.rank}: exit code {end.code} after {end.ended_s:.2f} s, "
        f"sent {end.sent_bytes:,} bytes, received {end.received_bytes:,} bytes"
    )


if __name__ == "__main__":
    sys.exit(main())
