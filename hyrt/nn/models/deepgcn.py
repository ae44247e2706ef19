"""DeepGCN (Li et al., ICCV 2019)."""

from __future__ import annotations

from typing import ClassVar

from hyrt.nn.models.gcn import Gcn


class DeepGcn(Gcn):
    """Many layers of a GCN, each of which but the first and the last adds its result to its input.

    Li et al. normalise over batches; here it is over a vertex's columns, which no split of a step changes.
    """

    adds_rows_last = True
    defaults: ClassVar = {
        "train.lr": 3e-3,
        "model.layers": 7,
        "model.dropout": 0.2,
        "model.norm": "layer",
        "model.residual": True,
    }
    assumption = "a deepgcn layer costs what one of gcn does; its norm and the sum with its input are free"
