"""Selection of devices from a calibrated machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.platforms.platform import Accelerator, Platform


def full_name(name: str) -> str:
    """Return the name `kind:number`, with number 0 for a bare `kind`."""
    return name if ":" in name else f"{name}:0"


def with_trainers(platform: Platform, names: Sequence[str]) -> Platform | None:
    """Return the platform with only these trainers, accelerators in the given order; None if one is missing.

    Parameters
    ----------
    platform
        The platform, each of whose accelerators stands for one device, numbered per kind.
    names
        Device names such as `cpu:0` and `opencl:0`.
    """
    by_name: dict[str, Accelerator] = {}
    for accelerator in platform.accelerators:
        number = sum(name.partition(":")[0] == accelerator.kind for name in by_name)
        by_name[f"{accelerator.kind}:{number}"] = accelerator
    selected = [name for name in names if name != "cpu:0"]
    if any(name not in by_name for name in selected):
        return None
    return replace(
        platform,
        host=replace(platform.host, trains="cpu:0" in names),
        accelerators=tuple(by_name[name] for name in selected),
    )
