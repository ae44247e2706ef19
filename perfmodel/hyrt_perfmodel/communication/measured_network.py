"""A network from the times that exchanges between its ranks took."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import yaml

from hyrt_perfmodel.communication.network import Network
from hyrt_perfmodel.file_content import StrictDumper

_SMALL, _LARGE = 16, 0.25


@dataclass(frozen=True, slots=True)
class TimedTravel:
    """An operation of all ranks, as the model counts it, and what it took."""

    operation: str
    """What was done, for people."""
    messages: int
    """How many messages of a rank follow each other."""
    num_bytes: float
    """What the busiest rank sends, or receives, if that is more."""
    seconds: float
    """What it took, until the slowest rank had ended."""
    core_s: float = 0.0
    """Seconds of a core that a rank spent on so many messages and bytes, in the mean."""


@dataclass(frozen=True, slots=True)
class FittedNetwork:
    """A network, and how well it explains what was measured."""

    network: Network
    """Latency, bandwidth, and the part of it that exchanges reach."""
    errors: Mapping[str, float]
    """For each operation the median of |predicted - measured| / measured over its sizes."""


def fit_network(
    all_reduces: Sequence[TimedTravel],
    exchanges: Sequence[TimedTravel],
    *,
    name: str,
    source: str,
    machines: int = 0,
) -> FittedNetwork:
    """The network that small operations give the latency of, and large ones the bandwidth.

    All-reduces keep all links equally busy and give the bandwidth; what exchanges reach of it is their own
    part. Sizes between count only in the errors: there systems change from one way of sending to another.

    Parameters
    ----------
    all_reduces, exchanges
        Operations of different sizes; small ones are up to 16 times the smallest, and large ones at least a
        quarter of the largest.
    name, source, machines
        What the network is called, where its numbers are from, and on how many machines the ranks share
        cores.

    Raises
    ------
    ValueError
        If large operations took no longer than small ones, so that there is no bandwidth to find.
    """
    every = [*all_reduces, *exchanges]
    least = min(each.num_bytes for each in every)
    small = [each for each in every if each.num_bytes <= _SMALL * least]
    latency_s = statistics.median(each.seconds / each.messages for each in small)
    rate = _bytes_per_s(all_reduces, latency_s)
    message_core_s = statistics.median(each.core_s / each.messages for each in small)
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
    for travels, predicted_s in ((all_reduces, network.seconds), (exchanges, network.uneven_s)):
        for each in travels:
            expected_s = predicted_s(each.num_bytes, each.messages)
            errors[each.operation].append(abs(expected_s / each.seconds - 1))
    return FittedNetwork(network, {name: statistics.median(found) for name, found in errors.items()})


def _large(travels: Sequence[TimedTravel]) -> list[TimedTravel]:
    most = max(each.num_bytes for each in travels)
    return [each for each in travels if each.num_bytes >= _LARGE * most]


def _gb_core_s(travels: Sequence[TimedTravel], message_core_s: float) -> float:
    """Seconds of a core for 1e9 bytes of the large ones, without what their messages cost."""
    large = _large(travels)
    seconds = sum(each.core_s - each.messages * message_core_s for each in large)
    return max(0.0, 1e9 * seconds / sum(each.num_bytes for each in large))


def _bytes_per_s(travels: Sequence[TimedTravel], latency_s: float) -> float:
    """The rate of the large ones, without what their messages cost whatever their size."""
    large = _large(travels)
    most = max(each.num_bytes for each in large)
    seconds = sum(each.seconds - each.messages * latency_s for each in large)
    if seconds <= 0:
        raise ValueError(
            f"{large[0].operation} of {most:.0f} bytes took no longer than small ones, so that there is no "
            "bandwidth to find: measure again while nothing else runs"
        )
    return sum(each.num_bytes for each in large) / seconds


def network_text(network: Network) -> str:
    """The text of the file that `hyrt_perfmodel.communication.network.read_network` reads."""
    return yaml.dump(asdict(network), Dumper=StrictDumper, sort_keys=False)
