"""Conversion of mini-batch blocks to DGL blocks."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np
import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.own_modules.conv_stack import as_tensor
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block

WEIGHTS, FEATURES = "weight", "feat"
"""Names of edge weights and edge features in `edata`, equal to those that `hyrt.load` reads from a graph."""


def check_dgl(maker: str) -> None:
    """Import dgl.

    Raises
    ------
    UnsupportedModel
        If dgl cannot be imported.
    """
    try:
        import_module("dgl")
    # OSError: dgl loads libraries that are built for one version of torch.
    except (ImportError, OSError) as error:
        raise UnsupportedModel(
            f"{maker}() needs the package dgl, which cannot be imported: {' '.join(str(error).split())}: "
            "install a dgl that goes with this torch, such as pip install dgl==1.1.3 (see the page "
            "Coming from DGL)"
        ) from error


def dgl_block(block: Block | TensorBlock, dtype: torch.dtype, *, self_loops: bool) -> Any:
    """Convert a block to a `DGLBlock` with edge weights and edge features in `edata`.

    Parameters
    ----------
    block
        Block of a mini-batch, not read in place.
    dtype
        Dtype of the edge weights and features.
    self_loops
        Whether to add a self-loop to each destination, with weight and features 1 as in
        `dgl.add_self_loop`.
    """
    indptr, columns = _as_ids(block.indptr), _as_ids(block.columns)
    values = {
        name: as_tensor(rows, dtype)
        for name, rows in ((WEIGHTS, block.edge_weights), (FEATURES, block.edge_features))
    }
    if self_loops:
        num_dst = block.num_dst
        number = torch.arange(num_dst + 1, device=indptr.device)
        indptr = indptr + number
        # Self-loops are the last edges of their rows.
        loops = indptr[1:] - 1
        others = torch.ones(block.num_edges + num_dst, dtype=torch.bool, device=indptr.device)
        others[loops] = False
        grown = columns.new_empty(len(others))
        grown[others], grown[loops] = columns, number[:num_dst]
        columns = grown
        for name, rows in values.items():
            if rows is not None:
                with_loops = rows.new_ones(len(others), *rows.shape[1:])
                with_loops[others] = rows
                values[name] = with_loops
    # Without edge ids, some sums in DGL 1.1 and 2.1 dereference a null pointer.
    numbers = torch.arange(len(columns), device=columns.device)
    edges = ("csc", (indptr, columns, numbers))
    made = sys.modules["dgl"].create_block(
        edges, num_src_nodes=block.num_src, num_dst_nodes=block.num_dst, device=columns.device
    )
    for name, rows in values.items():
        if rows is not None:
            made.edata[name] = rows
    return made


def _as_ids(ids: Any) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(ids)) if isinstance(ids, np.ndarray) else ids
    return tensor.long()
