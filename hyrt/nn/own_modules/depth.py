"""How many blocks a module of the caller's takes, where it tells."""

from __future__ import annotations

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.model import GNN
from hyrt.nn.own_modules.conv_stack import ConvStack


def depth_of(module: torch.nn.Module) -> int | None:
    """The layers of a stack of layers or convolutions; None for a module of another class."""
    if isinstance(module, ConvStack):
        return len(module.convs)
    return module.architecture.layers if isinstance(module, GNN) else None


def check_depth(module: torch.nn.Module, blocks: int) -> None:
    """Demand that mini-batches have a block for each layer.

    Raises
    ------
    UnsupportedModel
        Naming both numbers and the setting.
    """
    depth = depth_of(module)
    if depth is not None and depth != blocks:
        raise UnsupportedModel(
            f"the model has {depth} layers, but mini-batches have {blocks}: give sampler.fanout {depth} "
            "numbers, one for each layer"
        )
