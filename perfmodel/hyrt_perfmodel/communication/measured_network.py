"""Fit of a network model to measured exchanges between ranks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import yaml

from hyrt_perfmodel.communication.network import Network
from hyrt_perfmodel.file_content import StrictDumper

_MAX_SMALL_RATIO, _MIN_LARGE_FRACTION = 16, 0.25


@dataclass(frozen=True, slots=True)
class TimedTravel:
    """A collective operation in terms of the model, and its measured time."""

    operation: str
    """Display name of the operation."""
    messages: int
    """Number of sequential messages of a rank."""
    num_bytes: float
    """Bytes that the busiest rank sends or receives, whichever is more."""
    seconds: float
    """Seconds until the slowest rank ended."""
    core_s: float = 0.0
    """Mean CPU seconds that a rank spent on the messages and bytes."""


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """A fitted network, and how well it explains the measurements."""

    network: Network
    """Latency, bandwidth, and the fraction of it that exchanges reach."""
    errors: Mapping[str, float]
    """For each operation, the median of |predicted - measured| / measured over its sizes."""


def fit_network(
    all_reduces: Sequence[TimedTravel],
    exchanges: Sequence[TimedTravel],
    *,
    name: str,
    source: str,
    machines: int = 0,
) -> FittedNetwork:
    """Fit latency to small operations and bandwidth to large ones.

    All-reduces load all links equally and determine the bandwidth; exchanges determine the fraction of it
    that they reach. Operations of medium size are only used for the errors, since systems switch between
    algorithms there.

    Parameters
    ----------
    all_reduces, exchanges
        Operations of different sizes; small means up to 16 times the smallest, large at least a quarter of
        the largest.
    name, source, machines
        Name of the network, origin of its numbers, and number of machines whose cores the ranks share.

    Raises
    ------
    ValueError
        If large operations took no longer than small ones, so that there is no bandwidth to fit.
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


def _large(travels: Sequence[TimedTravel]) -> list[TimedTravel]:
    max_bytes = max(operation.num_bytes for operation in travels)
    return [operation for operation in travels if operation.num_bytes >= _MIN_LARGE_FRACTION * max_bytes]


def _gb_core_s(travels: Sequence[TimedTravel], message_core_s: float) -> float:
    """Return the CPU seconds per 1e9 bytes of large operations, less the cost of their messages."""
    large = _large(travels)
    seconds = sum(operation.core_s - operation.messages * message_core_s for operation in large)
    return max(0.0, 1e9 * seconds / sum(operation.num_bytes for operation in large))


def _bytes_per_s(travels: Sequence[TimedTravel], latency_s: float) -> float:
    """Return the bandwidth of large operations, less the fixed cost of their messages."""
    large = _large(travels)
    max_bytes = max(operation.num_bytes for operation in large)
    seconds = sum(operation.seconds - operation.messages * latency_s for operation in large)
    if seconds <= 0:
        raise ValueError(
            f"{large[0].operation} of {max_bytes:.0f} bytes took no longer than small ones, so that there is "
            "no bandwidth to find: measure again while nothing else runs"
        )
    return sum(operation.num_bytes for operation in large) / seconds


def network_text(network: Network) -> str:
    """Format a network file for `hyrt_perfmodel.communication.network.read_network`."""
    return yaml.dump(asdict(network), Dumper=StrictDumper, sort_keys=False)
