"""Models with random parameters, and their scores and gradients next to the dense reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dense_reference as dense
import torch
from closeness import gradients
from torch import Tensor

from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import Rows
from hyrt.nn.model import GNN
from hyrt.sampling.block import Block

KINDS = ("gcn", "graphsage-mean", "graphsage-max", "gin", "gat")


def model_of(
    kind: str, in_features: int, layers: int, dtype: torch.dtype = torch.float64, **more: Any
) -> GNN:
    """A model of one of `KINDS`, with no parameter left at zero or one."""
    name, _, reduce = kind.partition("-")
    settings: dict[str, Any] = {"hidden": 12, "num_classes": 5, "heads": 3} | more
    if reduce:
        settings["aggregate"] = reduce
    model = GNN(Architecture(kind=name, in_features=in_features, layers=layers, **settings))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.to(dtype)


def direction_of(out: Tensor) -> Tensor:
    """A fixed random gradient of the scores."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(
        out.dtype
    )


def ours(model: torch.nn.Module, blocks: Sequence[Block], x: Rows) -> dict[str, Tensor]:
    """Scores, gradients of the parameters and, where x takes one, of x."""
    model.zero_grad()
    if isinstance(x, Tensor) and x.requires_grad:
        x.grad = None
    out = model(blocks, x)
    out.backward(direction_of(out))
    found = {"scores": out.detach()} | gradients(model.named_parameters())
    if isinstance(x, Tensor) and x.requires_grad:
        found |= gradients([("x", x)])
    return found


def reference(kind: str, model: GNN, blocks: Sequence[Block], x: Tensor, **more: Any) -> dict[str, Tensor]:
    """The same from dense float64 matrices."""
    parameters = dense.parameters_of(model)
    exact = x.detach().double().requires_grad_()
    a = model.architecture
    out = dense.scores(kind, blocks, exact, parameters, residual=a.residual, norm=a.norm == "layer", **more)
    out.backward(direction_of(out))
    return {"scores": out.detach()} | gradients([*parameters.items(), ("x", exact)])
