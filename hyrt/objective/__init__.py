"""Training objectives: losses and metrics. External packages import the base class `Objective` from here."""

from __future__ import annotations

from hyrt.objective.objective import Objective

__all__ = ["Objective"]
