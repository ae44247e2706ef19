"""A mini-batch of one vertex, so that kernels are compiled before the first step and not in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch


def smallest_batch(layers: int, width: int, labels: NDArray[Any]) -> MiniBatch:
    """One target with such labels, whose only neighbour, in every layer, is itself."""
    one = np.ones(1, np.int32)
    vertex = np.zeros(1, np.int32)
    blocks = [
        Block(
            indptr=np.array([0, 1], np.int32),
            columns=vertex,
            destinations=vertex,
            sources=vertex,
            num_src=1,
            degrees=one,
            source_degrees=one,
            layer=layer,
        )
        for layer in range(1, layers + 1)
    ]
    return MiniBatch(0, vertex, blocks, labels, None, 1.0, torch.zeros(1, width))
