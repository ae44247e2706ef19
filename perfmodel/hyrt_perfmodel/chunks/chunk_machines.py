"""What trains a whole graph in chunks: a host, and devices behind switches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hyrt_perfmodel.chunks.chunk_costs import ChunkCosts, ChunkRates
from hyrt_perfmodel.chunks.selection import filter_below
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform, PlatformTrainer, TrainerRates

_GB = 1e9
# `launch_s` is that of a mini-batch step of two layers: about so many kernels.
_LAUNCHES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMachine:
    """A host, and devices behind switches."""

    devices: tuple[ChunkCosts, ...]
    switches: tuple[int, ...]
    """The number of each device's switch, from 0; the devices of one share its link to host memory."""
    switch_bytes_per_s: tuple[float, ...]
    """Of each switch's link to host memory."""
    filter_bytes_per_s: float
    """At which the host gathers rows for all devices together."""

    def filter_limit(self, device: int) -> float:
        """The useful fraction below which rows are filtered for a device; 0 where it reads them in place."""
        links = [math.inf if each.copies_itself else each.link_bytes_per_s for each in self.devices]
        if math.isinf(links[device]):
            return 0.0
        # The host filters for all devices that rows are copied to.
        copied = [d for d, link in enumerate(links) if not math.isinf(link)]
        of_switches = sum(self.switch_bytes_per_s[switch] for switch in {self.switches[d] for d in copied})
        return filter_below(self.filter_bytes_per_s, min(of_switches, sum(links[d] for d in copied)))


def chunk_machine(platform: Platform, model: str) -> ChunkMachine:
    """The accelerators of a platform; the host's cores filter rows for them.

    Parameters
    ----------
    platform
        Those of one entry share a switch where it says what the switch carries; others have links of their
        own.
    model
        The kind of model, for rates that were measured with it.
    """
    devices: list[ChunkRates] = []
    switches: list[int] = []
    links: list[float] = []
    for entry in platform.accelerators:
        rates = entry.models.get(model, entry)
        device = _rates(entry, rates)
        for number in range(entry.count):
            if number == 0 or entry.switch_gb_s is None:
                links.append(_GB * (entry.link_gb_s if entry.switch_gb_s is None else entry.switch_gb_s))
            devices.append(device)
            switches.append(len(links) - 1)
    return ChunkMachine(
        devices=tuple(devices),
        switches=tuple(switches),
        switch_bytes_per_s=tuple(links),
        filter_bytes_per_s=_filter_bytes_per_s(platform.host),
    )


def team_machine(trainers: Sequence[PlatformTrainer], host: Host, threads: int | None = None) -> ChunkMachine:
    """Some trainers of a platform that share a graph.

    Parameters
    ----------
    trainers
        The trainers; the host gathers by operators that are not fused, from its own memory.
    host
        The host, which filters rows for them.
    threads
        Threads of the host's trainer; by default all that were measured.
    """
    devices = tuple(_of_trainer(each, host, threads) for each in trainers)
    switches: list[int] = []
    links: dict[object, float] = {}
    for number, each in enumerate(trainers):
        # One that shares none has a link of its own, by its name.
        switch: object = each.name if each.switch is None else each.switch
        shared = each.device.switch_gb_s
        links.setdefault(switch, devices[number].link_bytes_per_s if shared is None else shared * _GB)
        switches.append(list(links).index(switch))
    return ChunkMachine(
        devices=devices,
        switches=tuple(switches),
        switch_bytes_per_s=tuple(links.values()),
        filter_bytes_per_s=_filter_bytes_per_s(host),
    )


def _of_trainer(trainer: PlatformTrainer, host: Host, threads: int | None) -> ChunkCosts:
    if trainer.is_host and (measured := host.chunk_rates(threads)) is not None:
        return measured
    return _rates(trainer.device, trainer.rates, fused=not trainer.is_host)


def _rates(device: Accelerator, rates: Accelerator | TrainerRates, *, fused: bool = True) -> ChunkRates:
    return ChunkRates(
        link_bytes_per_s=device.link_gb_s * _GB,
        memory_bytes_per_s=rates.memory_gb_s * _GB,
        macs_per_s=rates.macs_per_s,
        link_latency_s=device.link_latency_s,
        launch_s=rates.launch_s / _LAUNCHES,
        fused=fused,
    )


def _filter_bytes_per_s(host: Host) -> float:
    threads = math.inf if host.cores is None else host.cores * (host.thread_load_gb_s or math.inf)
    # Each byte is read and written.
    return _GB * min(host.memory_gb_s, threads) / 2
