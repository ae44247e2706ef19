"""Network models: predefined, from files, or fitted to measured exchanges between ranks."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from hyrt_perfmodel.suggestions import nearest_name
from hyrt_perfmodel.validation import (
    Index,
    NonNegative,
    Positive,
    StrictDumper,
    Unbounded,
    build_dataclass,
    check_numbers,
    read_yaml,
)

# TCP payload as a fraction of an Ethernet frame: 1460 of 1538 bytes on the wire.
_ETHERNET_PART = 1460 / 1538
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)([kmg])bit")
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SOCKET_LATENCY_S = 5e-5
NETWORK_SUFFIXES = (".yaml", ".yml")
# Measured between four emulated nodes with 200 Mbit/s links: benchmarks/2026-11-23-rows.md.
_UNEVEN_PART = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Network of equal ranks with full-duplex links to a switch of unlimited bandwidth."""

    name: str
    latency_s: NonNegative
    """Fixed cost of a message (alpha)."""
    gb_s: Unbounded
    """Bandwidth of a rank in each direction in 1e9 bytes per second (the inverse of beta)."""
    uneven_part: Positive = 1.0
    """Fraction of `gb_s` that the busiest link reaches while ranks exchange blocks of different sizes: some
    links finish early, and the others do not become faster.
    """
    message_core_s: NonNegative = 0.0
    """CPU seconds in which a rank sends one message and receives one."""
    gb_core_s: NonNegative = 0.0
    """CPU seconds in which a rank sends 1e9 bytes and receives as many."""
    machines: Index = 0
    """Number of machines whose cores the ranks share, or 0 if each rank has a separate machine."""
    source: str = "assumed"
    """Origin of the numbers, such as `assumed`."""

    def __post_init__(self) -> None:
        check_numbers(f"network {self.name!r}", self)

    def seconds(self, num_bytes: float, messages: int = 1) -> float:
        """Return the time in seconds of sequential messages on one link (alpha-beta)."""
        return messages * self.latency_s + num_bytes / (self.gb_s * 1e9)

    def uneven_s(self, num_bytes: float, messages: int) -> float:
        """Return the time in seconds to exchange unequal blocks, with `num_bytes` on the busiest link."""
        return self.seconds(num_bytes / self.uneven_part, messages)

    def core_s(self, num_bytes: float, messages: int = 1) -> float:
        """Return the CPU seconds in which a rank sends `messages` messages and receives as many."""
        return messages * self.message_core_s + num_bytes * self.gb_core_s / 1e9

    def ranks_per_machine(self, ranks: int) -> int:
        """Return the maximum number of ranks that share the cores of a machine."""
        return -(-ranks // self.machines) if self.machines else 1


def _ethernet(name: str, gbit_s: float, latency_s: float) -> Network:
    return Network(
        name=name,
        latency_s=latency_s,
        gb_s=gbit_s / 8 * _ETHERNET_PART,
        uneven_part=_UNEVEN_PART,
        source=f"assumed: {gbit_s:g} Gbit/s minus headers, {_UNEVEN_PART:.0%} of that for uneven exchanges, "
        f"and {latency_s * 1e6:g} us per message through sockets",
    )


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        network.name: network
        for network in (
            _ethernet("1gbit", 1, _SOCKET_LATENCY_S),
            _ethernet("10gbit", 10, 3e-5),
            _ethernet("25gbit", 25, 2e-5),
            _ethernet("100gbit", 100, 1e-5),
            Network(
                name="slingshot-11",
                latency_s=2e-6,
                gb_s=22.5,
                source="assumed: 90 % of one 200 Gbit/s adapter per rank, and 2 us per message",
            ),
            Network(
                name="loopback",
                latency_s=2e-5,
                gb_s=2.0,
                machines=1,
                source="assumed: sockets between processes of one machine",
            ),
        )
    }
)
"""Predefined networks by name."""


def find_network(name: str) -> Network:
    """Return a predefined network, an Ethernet of any rate such as `200mbit`, or a network from a YAML file.

    Raises ValueError if the name is unknown (the message suggests the nearest name) or the file is invalid.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    if name.endswith(NETWORK_SUFFIXES):
        return read_network(Path(name))
    rate = _RATE.fullmatch(name)
    if rate is not None and float(rate[1]) > 0:
        return _ethernet(name, float(rate[1]) * _FACTORS[rate[2]] / 1e9, _SOCKET_LATENCY_S)
    near = nearest_name(name, NETWORKS)
    known = f"choose one of {', '.join(NETWORKS)}, a rate such as 200mbit, or a .yaml file"
    hint = f"did you mean {near!r}?" if near else known
    raise ValueError(f"unknown network {name!r}: {hint}")


def read_network(path: Path) -> Network:
    """Read a network from a YAML file, such as one that `hyrt calibrate --network` has written.

    The file contains `latency_s` and `gb_s`, and optionally `uneven_part`, `name` and `source`. Raises
    ValueError if it is invalid.
    """
    content = {"name": path.stem, "source": f"given in {path}", **read_yaml(path)}
    return build_dataclass(Network, content, str(path))


_MAX_SMALL_RATIO, _MIN_LARGE_FRACTION = 16, 0.25


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """Measured time of a collective operation, and its sizes in the model."""

    operation: str
    """Name of the operation for display."""
    messages: int
    """Number of messages that a rank sends one after the other."""
    num_bytes: float
    """Number of bytes that the busiest rank sends or receives, whichever is larger."""
    seconds: float
    """Time in seconds until the slowest rank has ended."""
    core_s: float = 0.0
    """Mean CPU seconds of a rank for these messages and bytes."""


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """Fitted network and the errors of the fit."""

    network: Network
    """Network with the fitted latency, bandwidth, and fraction of the bandwidth that exchanges reach."""
    errors: Mapping[str, float]
    """Median over sizes of |predicted - measured| / measured, by operation."""


def fit_network(
    all_reduces: Sequence[TimedCollective],
    exchanges: Sequence[TimedCollective],
    *,
    name: str,
    source: str,
    machines: int = 0,
) -> FittedNetwork:
    """Fit the latency to small operations, and the bandwidth to large ones.

    All-reduces load all links equally and determine the bandwidth; exchanges determine the fraction that they
    reach. Small operations are up to 16 times as large as the smallest, and large ones at least a quarter of
    the largest. Other sizes, at which systems switch between algorithms, are only used for the errors.
    `machines` is the number of machines whose cores the ranks share. Raises ValueError if large operations
    took no longer than small ones.
    """
    operations = [*all_reduces, *exchanges]
    min_bytes = min(operation.num_bytes for operation in operations)
    small = [operation for operation in operations if operation.num_bytes <= _MAX_SMALL_RATIO * min_bytes]
    latency_s = statistics.median(operation.seconds / operation.messages for operation in small)
    rate = _bytes_per_s(all_reduces, latency_s)
    message_core_s = statistics.median(operation.core_s / operation.messages for operation in small)
    network = Network(
        name=name,
        latency_s=latency_s,
        gb_s=rate / 1e9,
        uneven_part=min(_bytes_per_s(exchanges, latency_s) / rate, 1.0),
        message_core_s=message_core_s,
        gb_core_s=_gb_core_s(exchanges, message_core_s),
        machines=machines,
        source=source,
    )
    errors = defaultdict(list)
    for group, predicted_s in ((all_reduces, network.seconds), (exchanges, network.uneven_s)):
        for operation in group:
            expected_s = predicted_s(operation.num_bytes, operation.messages)
            errors[operation.operation].append(abs(expected_s / operation.seconds - 1))
    return FittedNetwork(network, {name: statistics.median(values) for name, values in errors.items()})


def _large(travels: Sequence[TimedCollective]) -> list[TimedCollective]:
    max_bytes = max(operation.num_bytes for operation in travels)
    return [operation for operation in travels if operation.num_bytes >= _MIN_LARGE_FRACTION * max_bytes]


def _gb_core_s(travels: Sequence[TimedCollective], message_core_s: float) -> float:
    """Return the CPU seconds per 1e9 bytes in large operations, without the cost of their messages."""
    large = _large(travels)
    seconds = sum(operation.core_s - operation.messages * message_core_s for operation in large)
    return max(0.0, 1e9 * seconds / sum(operation.num_bytes for operation in large))


def _bytes_per_s(travels: Sequence[TimedCollective], latency_s: float) -> float:
    """Return the bandwidth of large operations, without the fixed cost of their messages."""
    large = _large(travels)
    max_bytes = max(operation.num_bytes for operation in large)
    seconds = sum(operation.seconds - operation.messages * latency_s for operation in large)
    if seconds <= 0:
        raise ValueError(
            f"{large[0].operation} of {max_bytes:.0f} bytes took no longer than small ones, so the "
            "bandwidth cannot be determined: measure again while nothing else is running"
        )
    return sum(operation.num_bytes for operation in large) / seconds


def format_network(network: Network) -> str:
    """Return the text of a network file that `read_network` can read."""
    return yaml.dump(asdict(network), Dumper=StrictDumper, sort_keys=False)
