"""Measuring with few and small probes, for tests of what is done with the rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hyrt.predict.calibrate import machine
from hyrt.predict.calibrate.host import SMALL
from hyrt.predict.calibrate.trainers import PROBES

# Widths that the conformance suite has kernels for.
LITTLE = [
    replace(PROBES[4], features=13, hidden=33, classes=2, targets=targets, fanouts=fanouts, graph=SMALL)
    for targets in (16, 32, 64, 128, 256)
    for fanouts in ((5, 5), (10, 10))
]


def measure_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have devices measured with the small graph alone, which is all that these probes need."""
    monkeypatch.setattr(machine.measure_kind, "__defaults__", (LITTLE,))
    monkeypatch.setattr(machine, "SHARED_PROBES", LITTLE[-4:])
    monkeypatch.setattr(machine, "_graphs", lambda kinds: [SMALL])
