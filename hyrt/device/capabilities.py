"""What a device may be able to do beside the protocol: its class names the capabilities among its bases.

Only what a class declares is asked of its devices: a method that happens to have the same name is not a capability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyrt.objective import Objective


class TakesObjective(ABC):
    """Trains for other objectives than `classification`, which is what a device without this trains for."""

    @abstractmethod
    def take_objective(self, objective: Objective) -> None:
        """Train for an objective, from the next `load` on.

        A device that runs torch calls the objective's own code; one with kernels of its own computes the objectives
        that it has kernels for, and gives the scores of the others to `hyrt.objective.on_host.loss_on_host`, which
        returns their gradient.

        Raises
        ------
        UnsupportedModel
            Naming objective and device, if it cannot train for it.
        """
