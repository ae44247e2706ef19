"""Fused loops over tensors on a device that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop


class TensorLoops(Protocol):
    """Runs loops over edges on the current stream of a torch device."""

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """How many partial sums there are of what is added up over so many rows."""
        ...

    def __call__(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, torch.Tensor], num_rows: int, first: int = 0
    ) -> None:
        """Run a loop.

        Parameters
        ----------
        loop, call
            What is computed, and how it is called.
        given
            Contiguous tensors by the names of `CKernel.arguments`; of what is added up over all rows,
            [num_totals, width].
        num_rows
            How many rows are computed.
        first
            The first source, where edges are known by their sources.
        """
        ...
