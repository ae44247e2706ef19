"""Rejection of modules that would make a step depend on the split."""

from __future__ import annotations

import torch

from hyrt.checks import check_kind
from hyrt.errors import UnsupportedModel


def refuse_batch_statistics(model: torch.nn.Module, device: str) -> None:
    """Reject a model with layers whose result depends on other rows of the mini-batch.

    Raises
    ------
    UnsupportedModel
        If the model has a batch norm; the message names the layer and the device.
    """
    check_kind("model", model, torch.nn.Module, "give a torch module")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModel(
                f"layer {name!r} ({type(module).__name__}) on {device}: statistics over a mini-batch "
                "depend on the split, because no trainer sees the whole step: use torch.nn.LayerNorm"
            )
