"""Names of a run's devices, those of simulated ones with a word that says so: their times are not of a clock on the wall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Kinds of which every device is simulated. An emulated `fpga` has the kind of a card: the run's status tells
# of it.
_KINDS = ("fpga-csim", "null")


def labelled(name: str) -> str:
    """`fpga-csim:0 (simulated)`; others as they are.

    Parameters
    ----------
    name
        Of a device, `fpga-csim:0`, or its kind.
    """
    return f"{name} (simulated)" if name.partition(":")[0] in _KINDS else name


def labelled_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same by labelled names."""
    return {labelled(name): value for name, value in values.items()}
