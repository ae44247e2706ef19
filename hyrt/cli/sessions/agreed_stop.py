"""Coordinated stop: a signal to one rank stops all ranks after the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hyrt.machine.this_process.stop_signals import StopSignals


class Agreement(Protocol):
    """Source of the signal on which all ranks have agreed."""

    @property
    def agreed_signal(self) -> int:
        """Number of the signal after which all ranks stop; 0 if there is none."""
        ...


class AgreedStop:
    """Replacement for the stop signals of one process if all ranks must stop together.

    Parameters
    ----------
    signals
        Stop signals of this process.
    agreement
        Agreement of all ranks.
    """

    def __init__(self, signals: StopSignals, agreement: Agreement) -> None:
        self._signals = signals
        self._agreement = agreement

    @property
    def requested(self) -> bool:
        """Whether all ranks stop."""
        return self._agreement.agreed_signal != 0

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal, equal on all ranks."""
        return 128 + self._agreement.agreed_signal

    def wait_for_step(self, announce: Callable[[str], None], last_words: Callable[[], str]) -> None:
        """Forward to `StopSignals.wait_for_step` of this process's signals."""
        self._signals.wait_for_step(announce, last_words)
