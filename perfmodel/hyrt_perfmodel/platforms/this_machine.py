"""Parts of a calibrated machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.platforms.platform import Accelerator, Platform


def full_name(name: str) -> str:
    """`kind:number` for `kind` alone, too."""
    return name if ":" in name else f"{name}:0"


def with_trainers(platform: Platform, names: Sequence[str]) -> Platform | None:
    """The platform with these trainers only, accelerators in the order given; None if it lacks one.

    Parameters
    ----------
    platform
        The platform, whose accelerators each stand for one device, numbered by kind.
    names
        Names of devices, like `cpu:0` and `opencl:0`.
    """
    there: dict[str, Accelerator] = {}
    for accelerator in platform.accelerators:
        number = sum(name.partition(":")[0] == accelerator.kind for name in there)
        there[f"{accelerator.kind}:{number}"] = accelerator
    wanted = [name for name in names if name != "cpu:0"]
    if any(name not in there for name in wanted):
        return None
    return replace(
        platform,
        host=replace(platform.host, trains="cpu:0" in names),
        accelerators=tuple(there[name] for name in wanted),
    )
