"""DeepGCN (Li et al., ICCV 2019)."""

from __future__ import annotations

from typing import ClassVar

from hyrt.nn.models.gcn import Gcn


class DeepGcn(Gcn):
    """GCN with many layers, in which all but the first and the last layer add their input to their result.

    Li et al. use batch normalization. This model kind normalizes the columns of each vertex, because batch
    statistics would depend on the split of a step.
    """

    adds_rows_last = True
    defaults: ClassVar = {
        "train.lr": 3e-3,
        "model.layers": 7,
        "model.dropout": 0.2,
        "model.norm": "layer",
        "model.residual": True,
    }
    assumption = "a deepgcn layer costs as much as a gcn layer; its norm and residual sum are free"
