"""What a model is trained for and judged by. A third party's objective imports `Objective` from here."""

from __future__ import annotations

from hyrt.objective.objective import Objective

__all__ = ["Objective"]
