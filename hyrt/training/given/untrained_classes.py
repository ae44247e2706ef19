"""Classes that a run cannot learn, because no training vertex has them."""

from __future__ import annotations

import numpy as np

from hyrt.graph.graph import Graph
from hyrt.sampling.block import Ids

_NAMED = 5


def why_untrained(graph: Graph, targets: Ids) -> str:
    """What to tell a user whose labels leave classes out of the training; empty where they leave out none.

    Parameters
    ----------
    graph
        The graph with its labels.
    targets
        [n] the vertices to train on.
    """
    labels = graph.labels[targets]
    if graph.vertices.label_kind != "classes" or not len(targets) or labels.min() < 0:
        return ""
    there = np.bincount(labels, minlength=graph.num_classes) > 0
    if there.sum() == 1:
        return (
            f"{graph.name}: all training vertices are of class {int(there.argmax())}, so there is nothing to "
            "learn: check train_mask, or choose another data.split"
        )
    missing = np.flatnonzero(~there)
    if not len(missing):
        return ""
    named = ", ".join(map(str, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
    classes = f"class {named}" if len(missing) == 1 else f"classes {named}"
    return (
        f"{graph.name}: no training vertex is of {classes}, so the model cannot learn to predict "
        f"{'it' if len(missing) == 1 else 'them'}: check train_mask, or choose another data.split"
    )
