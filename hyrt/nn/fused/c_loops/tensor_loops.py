"""Interface of devices that run fused loops over tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop


class TensorLoops(Protocol):
    """Runner of loops over edges on the current stream of a torch device."""

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """Return the number of partial sums for a result that is summed over `num_rows` rows."""
        ...

    def __call__(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, torch.Tensor], num_rows: int, first: int = 0
    ) -> None:
        """Run a loop.

        Parameters
        ----------
        loop, call
            The computation, and how it is called.
        given
            Contiguous tensors by the names in `CKernel.arguments`; [num_totals, width] for results that are
            summed over all rows.
        num_rows
            Number of rows to compute.
        first
            The first source, if edges are identified by their sources.
        """
        ...
