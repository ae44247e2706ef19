"""Number of blocks that a user-defined module expects."""

from __future__ import annotations

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.model import GNN
from hyrt.nn.own_modules.conv_stack import ConvStack


def depth_of(module: torch.nn.Module) -> int | None:
    """Return the number of layers of a `GNN` or `ConvStack`; None for other modules."""
    if isinstance(module, ConvStack):
        return len(module.convs)
    return module.architecture.layers if isinstance(module, GNN) else None


def check_depth(module: torch.nn.Module, blocks: int) -> None:
    """Check that mini-batches have one block per layer.

    Raises
    ------
    UnsupportedModel
        If not; the message has both numbers and the setting.
    """
    depth = depth_of(module)
    if depth is not None and depth != blocks:
        raise UnsupportedModel(
            f"the model has {depth} layers, but mini-batches have {blocks}: give sampler.fanout {depth} "
            "numbers, one for each layer"
        )
