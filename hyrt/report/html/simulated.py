"""Names of a run's devices; simulated ones say so, as their times are not those of a real clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyrt.report.records.run_record import RunRecord

# Kinds of which every device is simulated, for folders of runs that did not record which devices are.
_KINDS = ("fpga-csim", "null")


def labelled(run: RunRecord, name: str) -> str:
    """The name of a device, such as `fpga-csim:0 (simulated)`.

    Parameters
    ----------
    run
        The run that used the device.
    name
        The device's name, or the request for it in the settings: `fpga-csim`, `fpga-csim:0=3`.
    """
    device = name.partition("=")[0]
    kind, _, index = device.partition(":")
    known = run.simulated
    simulated = kind in _KINDS if known is None else f"{kind}:{index or 0}" in known
    return f"{name} (simulated)" if simulated else name


def labelled_keys(run: RunRecord, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by labelled names of devices."""
    return {labelled(run, name): value for name, value in values.items()}
