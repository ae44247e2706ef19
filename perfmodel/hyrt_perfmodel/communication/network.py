"""Networks by name: what a message costs whatever its size, and bytes a second."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hyrt_perfmodel.checks import Index, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.file_content import made_of, read_yaml
from hyrt_perfmodel.nearest_name import nearest_name

# Of 1538 bytes that an Ethernet frame takes on the wire, 1460 are TCP's.
_ETHERNET_PART = 1460 / 1538
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)([kmg])bit")
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SOCKET_LATENCY_S = 5e-5
FILES = (".yaml", ".yml")
"""How the names of files end that say what a network is like."""
# Between four emulated nodes at 200 Mbit/s: benchmarks/2026-11-23-rows.md.
_UNEVEN_PART = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Links of equal ranks, each with one to a switch that bounds nothing.

    A rank sends and receives at the same time.
    """

    name: str
    latency_s: NotNegative
    """What a message costs whatever its size (alpha)."""
    gb_s: Unbounded
    """1e9 bytes a second into a rank, and as many out of it (the inverse of beta)."""
    uneven_part: Positive = 1.0
    """The part of `gb_s` that the busiest link reaches while ranks exchange blocks of different sizes: some
    links end early, and the others do not get faster."""
    message_core_s: NotNegative = 0.0
    """Seconds of a core that a rank spends on a message that it sends and one that it gets."""
    gb_core_s: NotNegative = 0.0
    """Seconds of a core that a rank spends on sending 1e9 bytes, and on getting as many."""
    machines: Index = 0
    """On how many machines the ranks are, whose cores they share; 0 where each has one of its own."""
    source: str = "assumed"
    """Where the numbers are from."""

    def __post_init__(self) -> None:
        check_numbers(f"network {self.name!r}", self)

    def seconds(self, num_bytes: float, messages: int = 1) -> float:
        """What messages take that follow each other on one link (alpha-beta)."""
        return messages * self.latency_s + num_bytes / (self.gb_s * 1e9)

    def uneven_s(self, num_bytes: float, messages: int) -> float:
        """What an exchange of blocks of different sizes takes, of so many bytes on the busiest link."""
        return self.seconds(num_bytes / self.uneven_part, messages)

    def core_s(self, num_bytes: float, messages: int = 1) -> float:
        """Seconds of a core that a rank spends on so many messages, and on as many that it gets."""
        return messages * self.message_core_s + num_bytes * self.gb_core_s / 1e9

    def ranks_of_machine(self, ranks: int) -> int:
        """How many of the ranks share the cores of a machine, at most."""
        return -(-ranks // self.machines) if self.machines else 1


def _ethernet(name: str, gbit_s: float, latency_s: float) -> Network:
    return Network(
        name=name,
        latency_s=latency_s,
        gb_s=gbit_s / 8 * _ETHERNET_PART,
        uneven_part=_UNEVEN_PART,
        source=f"assumed: {gbit_s:g} Gbit/s less headers, {_UNEVEN_PART:.0%} of that for uneven exchanges, "
        f"{latency_s * 1e6:g} us a message through sockets",
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
                source="assumed: one 200 Gbit/s adapter a rank, of which 90 %, and 2 us a message",
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
"""The networks that have a name."""


def find_network(name: str) -> Network:
    """A network by its name, an Ethernet of any rate, such as `200mbit`, or what a YAML file says of one.

    Raises
    ------
    ValueError
        If it is none of them, with the nearest name, or the file is wrong, with file and key.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    if name.endswith(FILES):
        return read_network(Path(name))
    rate = _RATE.fullmatch(name)
    if rate is not None and float(rate[1]) > 0:
        return _ethernet(name, float(rate[1]) * _FACTORS[rate[2]] / 1e9, _SOCKET_LATENCY_S)
    near = nearest_name(name, NETWORKS)
    known = f"give one of {', '.join(NETWORKS)}, a rate (200mbit), or a .yaml file"
    hint = f"did you mean {near!r}?" if near else known
    raise ValueError(f"unknown network {name!r}: {hint}")


def read_network(path: Path) -> Network:
    """A network from a YAML file, such as `hyrt calibrate --network` writes.

    Parameters
    ----------
    path
        The file, with `latency_s` and `gb_s`, and optionally `uneven_part`, `name` and `source`.

    Raises
    ------
    ValueError
        Naming file and key.
    """
    content = {"name": path.stem, "source": f"given in {path}", **read_yaml(path)}
    return made_of(Network, content, str(path))
