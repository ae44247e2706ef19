"""G-GCN layer."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.saga.layer import Edge, SagaLayer


class GatedLayer(SagaLayer):
    """U x_i + sum_j sigmoid(A x_i + B x_j) * V x_j, with element-wise products *.

    The residual gated graph convolution of Bresson and Laurent (2017), equation 11; the model adds the
    residual and the norm. NeuGraph's G-GCN (equations 1 and 2) has no self term, and multiplies after the
    sum.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    low_precision
        Multiply in bfloat16.
    """

    def __init__(self, in_features: int, out_features: int, *, low_precision: bool = False) -> None:
        super().__init__(in_features, out_features)
        self.low_precision = low_precision
        self.own = nn.Linear(in_features, out_features)
        self.gate_destination = nn.Linear(in_features, out_features)
        self.gate_source = nn.Linear(in_features, out_features, bias=False)
        self.message = nn.Linear(in_features, out_features, bias=False)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        gate = torch.sigmoid(self.gate_destination(edge.dst) + self.gate_source(edge.src))
        result: torch.Tensor = gate * self.message(edge.src)
        return result

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.own(vertex) + gathered
        return result
