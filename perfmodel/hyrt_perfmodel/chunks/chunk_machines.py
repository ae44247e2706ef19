"""Machine model for full-graph training in chunks: a host, and devices behind switches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hyrt_perfmodel.chunks.chunk_costs import ChunkCosts, ChunkRates
from hyrt_perfmodel.chunks.selection import filter_below
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform, PlatformTrainer, TrainerRates

_GB = 1e9
# Approximate number of kernels in a two-layer mini-batch step, for which `launch_s` was measured.
_KERNELS_PER_STEP = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMachine:
    """A host, and devices behind switches."""

    devices: tuple[ChunkCosts, ...]
    switches: tuple[int, ...]
    """Switch number of each device, from 0; devices of one switch share its link to host memory."""
    switch_bytes_per_s: tuple[float, ...]
    """Bandwidth of each switch's link to host memory."""
    filter_bytes_per_s: float
    """Rate at which the host gathers rows, for all devices together."""

    def filter_limit(self, device: int) -> float:
        """Return the useful fraction below which rows are filtered for a device; 0 if it reads rows in
        place.
        """
        links = [
            math.inf if device_costs.copies_itself else device_costs.link_bytes_per_s
            for device_costs in self.devices
        ]
        if math.isinf(links[device]):
            return 0.0
        # The host filters rows for all devices that rows are copied to.
        copied = [d for d, link in enumerate(links) if not math.isinf(link)]
        switch_rate = sum(self.switch_bytes_per_s[switch] for switch in {self.switches[d] for d in copied})
        return filter_below(self.filter_bytes_per_s, min(switch_rate, sum(links[d] for d in copied)))


def chunk_machine(platform: Platform, model: str) -> ChunkMachine:
    """Build the machine model of a platform's accelerators, whose rows the host cores filter.

    Parameters
    ----------
    platform
        The platform. Accelerators of one entry share a switch if it defines a switch bandwidth; others have
        separate links.
    model
        Kind of model, for rates measured with it.
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
    """Build the machine model of trainers that train one graph together.

    Parameters
    ----------
    trainers
        The trainers; the host trainer gathers with unfused operators from its own memory.
    host
        The host, which filters rows for the devices.
    threads
        Threads of the host trainer; by default the maximum that was measured.
    """
    devices = tuple(_trainer_costs(trainer, host, threads) for trainer in trainers)
    switches: list[int] = []
    links: dict[object, float] = {}
    for number, trainer in enumerate(trainers):
        # A trainer without a switch has a separate link, identified by its name.
        switch: object = trainer.name if trainer.switch is None else trainer.switch
        switch_gb_s = trainer.device.switch_gb_s
        links.setdefault(
            switch, devices[number].link_bytes_per_s if switch_gb_s is None else switch_gb_s * _GB
        )
        switches.append(list(links).index(switch))
    return ChunkMachine(
        devices=devices,
        switches=tuple(switches),
        switch_bytes_per_s=tuple(links.values()),
        filter_bytes_per_s=_filter_bytes_per_s(host),
    )


def _trainer_costs(trainer: PlatformTrainer, host: Host, threads: int | None) -> ChunkCosts:
    if trainer.is_host and (measured := host.chunk_rates(threads)) is not None:
        return measured
    return _rates(trainer.device, trainer.rates, fused=not trainer.is_host)


def _rates(device: Accelerator, rates: Accelerator | TrainerRates, *, fused: bool = True) -> ChunkRates:
    return ChunkRates(
        link_bytes_per_s=device.link_gb_s * _GB,
        memory_bytes_per_s=rates.memory_gb_s * _GB,
        macs_per_s=rates.macs_per_s,
        link_latency_s=device.link_latency_s,
        launch_s=rates.launch_s / _KERNELS_PER_STEP,
        fused=fused,
    )


def _filter_bytes_per_s(host: Host) -> float:
    threads = math.inf if host.cores is None else host.cores * (host.thread_load_gb_s or math.inf)
    # Each byte is read and written.
    return _GB * min(host.memory_gb_s, threads) / 2
