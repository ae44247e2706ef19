"""Decoders: scores of vertex pairs from one row per vertex.

Terms that depend on one vertex only, such as a product with weights, are already in its row
(`hyrt.nn.links.link_heads`). A decoder therefore has no weights and costs little per pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class Decoder:
    """Score function of vertex pairs.

    D is the width of an embedding, C the width of the decoder's input rows.
    """

    columns: Callable[[int], int]
    """Return C for a given D."""
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Return [...] scores from [..., C] rows of sources and of destinations; shapes are broadcast."""

    __repr__ = one_line


def _dot(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    if source.ndim == 3 and source.shape[1] == 1:
        # One source per row against many destinations: avoid the array of elementwise products.
        products: torch.Tensor = torch.matmul(destination, source.squeeze(1).unsqueeze(-1))
        return torch.squeeze(products, -1)
    return torch.sum(source * destination, -1)


def _distmult(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 2
    return _dot(source[..., :width], destination[..., width:])


def _transe(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 2
    distance: torch.Tensor = torch.linalg.vector_norm(source[..., :width] - destination[..., width:], dim=-1)
    return -distance


def _mlp(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 3
    hidden = (source[..., :width] + destination[..., width : 2 * width]).relu()
    return (hidden * source[..., 2 * width : 3 * width]).sum(-1) + source[..., 3 * width]


DECODERS: dict[str, Decoder] = {
    "dot": Decoder(lambda width: width, _dot),
    "distmult": Decoder(lambda width: 2 * width, _distmult),
    "transe": Decoder(lambda width: 2 * width, _transe),
    "mlp": Decoder(lambda width: 3 * width + 1, _mlp),
}
"""`dot`: u . v, from rows u and v. `distmult`: u . (r * v), from rows [r * u | u] (Yang et al., ICLR 2015).
`transe`: -|u + r - v|, from rows [u + r | u] (Bordes et al., NeurIPS 2013). `mlp`: w . relu(A u + B v + b) +
c, from rows [A u + b | B u | w | c].
"""
