"""Reduction of edge messages at their destinations, with torch operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.tensor_operators.segments import from_destinations, segment_max, to_destinations
from hyrt.nn.tensor_operators.tensor_block import TensorBlock

Accumulator = Literal["sum", "mean", "max", "attention", "concatenation"]
"""Reduction of the messages that a vertex receives."""


def combine(
    accumulate: Accumulator,
    values: Sequence[torch.Tensor],
    block: TensorBlock,
    factors: torch.Tensor | None,
    slots: int = 0,
) -> torch.Tensor:
    """Reduce the messages of edges, differentiable and without float atomics.

    Parameters
    ----------
    accumulate
        The accumulator; a mean is a sum with factors.
    values
        The messages [E, ...], or scores [E, heads] and messages.
    block
        The edges.
    factors
        [E, 1] factors of the messages for sums; None for 1.
    slots
        For `concatenation`, the number of messages per destination; no destination has more edges.

    Returns
    -------
    [num_dst, width], for `concatenation` [num_dst, slots * width]; zero without edges.
    """
    message = values[-1]
    flat = message.flatten(1)
    if accumulate == "concatenation":
        within = torch.arange(len(flat), device=flat.device) - block.indptr[:-1].index_select(0, block.rows())
        # Each edge has a separate slot.
        slot_rows = flat.new_zeros(block.num_dst * slots, flat.shape[1])
        return slot_rows.index_copy(0, block.rows() * slots + within, flat).view(block.num_dst, -1)
    if accumulate == "max":
        _, winners = segment_max(flat.detach(), block.indptr)
        if not len(flat):
            return flat.new_zeros(winners.shape)
        # Destinations share no edges, so the backward pass adds at max_count one gradient to each edge.
        return torch.where(winners >= 0, flat.gather(0, winners.clamp(min=0)), 0)
    if accumulate == "attention":
        heads = message.shape[1] if message.ndim == 3 else 1
        score = values[0].reshape(-1, heads)
        top, _ = segment_max(score.detach(), block.indptr)
        weight = (score - top.index_select(0, block.rows())).exp()
        total = to_destinations(block, weight)
        weight = weight / from_destinations(block, total)
        return to_destinations(
            block, (weight[:, :, None] * message.reshape(len(message), heads, -1)).flatten(1)
        )
    return to_destinations(block, flat if factors is None else flat * factors)


def check_slots(layer: nn.Module, slots: int, counts: NDArray[Any], vertices: NDArray[Any]) -> None:
    """Check that a layer that concatenates messages has a slot for every edge of a vertex.

    Parameters
    ----------
    layer
        The layer.
    slots
        Number of slots per vertex.
    counts
        [n], number of edges of each vertex.
    vertices
        [n], vertex ids.

    Raises
    ------
    UnsupportedModel
        If a vertex has too many edges; the message names the vertex with the maximum.
    """
    max_count = int(counts.max(initial=0))
    if max_count > slots:
        name = type(layer).__name__
        raise UnsupportedModel(
            f"{name} has {slots} slots for messages, but vertex {int(vertices[int(np.argmax(counts))])} has "
            f"{max_count} edges: set {name}.slots={max_count}, or sample fewer neighbours"
        )
