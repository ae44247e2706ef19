"""Stopping together: a signal to one rank stops all of them after the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hyrt.machine.this_process.stop_signals import StopSignals


class Agreement(Protocol):
    """Knows what all ranks have agreed on."""

    @property
    def agreed_signal(self) -> int:
        """The number of the signal after which all ranks stop; 0 for none."""
        ...


class AgreedStop:
    """Stands for the signals of one process where all ranks have to stop together.

    Parameters
    ----------
    signals
        The signals of this process.
    agreement
        What the ranks have agreed on.
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
        """128 + the number of the signal, the same at all ranks."""
        return 128 + self._agreement.agreed_signal

    def wait_for_step(self, announce: Callable[[str], None], last_words: Callable[[], str]) -> None:
        """As `StopSignals.wait_for_step`, of this process's own signals."""
        self._signals.wait_for_step(announce, last_words)
