"""Network models by name: latency and bandwidth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hyrt_perfmodel.checks import Index, NotNegative, Positive, Unbounded, check_numbers
from hyrt_perfmodel.file_content import made_of, read_yaml
from hyrt_perfmodel.nearest_name import nearest_name

# TCP payload fraction of an Ethernet frame: 1460 of 1538 bytes on the wire.
_ETHERNET_PART = 1460 / 1538
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)([kmg])bit")
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9}
_SOCKET_LATENCY_S = 5e-5
FILES = (".yaml", ".yml")
"""Suffixes of network description files."""
# Measured between four emulated nodes at 200 Mbit/s: benchmarks/2026-11-23-rows.md.
_UNEVEN_PART = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Links of equal ranks to a switch with unlimited bandwidth.

    Links are full duplex.
    """

    name: str
    latency_s: NotNegative
    """Fixed cost of a message (alpha)."""
    gb_s: Unbounded
    """Bandwidth into a rank, and out of it, in 1e9 bytes per second (the inverse of beta)."""
    uneven_part: Positive = 1.0
    """Fraction of `gb_s` that the busiest link reaches while ranks exchange blocks of different sizes: some
    links finish early, and the others do not become faster."""
    message_core_s: NotNegative = 0.0
    """CPU seconds that a rank spends on sending one message and receiving one."""
    gb_core_s: NotNegative = 0.0
    """CPU seconds that a rank spends on sending 1e9 bytes and receiving as many."""
    machines: Index = 0
    """Number of machines whose cores the ranks share; 0 if each rank has a separate machine."""
    source: str = "assumed"
    """Origin of the numbers."""

    def __post_init__(self) -> None:
        check_numbers(f"network {self.name!r}", self)

    def seconds(self, num_bytes: float, messages: int = 1) -> float:
        """Return the seconds of sequential messages on one link (alpha-beta)."""
        return messages * self.latency_s + num_bytes / (self.gb_s * 1e9)

    def uneven_s(self, num_bytes: float, messages: int) -> float:
        """Return the seconds of an exchange of blocks of different sizes, with `num_bytes` on the busiest
        link.
        """
        return self.seconds(num_bytes / self.uneven_part, messages)

    def core_s(self, num_bytes: float, messages: int = 1) -> float:
        """Return the CPU seconds that a rank spends on sending `messages` messages and receiving as many."""
        return messages * self.message_core_s + num_bytes * self.gb_core_s / 1e9

    def ranks_of_machine(self, ranks: int) -> int:
        """Return the maximum number of ranks that share the cores of a machine."""
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
    """Return a named network, an Ethernet of any rate such as `200mbit`, or a network from a YAML file.

    Raises
    ------
    ValueError
        If the name is unknown (the message suggests the nearest name) or the file is invalid (the message
        names file and key).
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
    """Read a network from a YAML file, as written by `hyrt calibrate --network`.

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
