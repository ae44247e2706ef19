"""Configured models for given widths, without a graph."""

from __future__ import annotations

import numpy as np
import torch

from hyrt.config import Config
from hyrt.graph.graph import SPLITS, Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import find_model
from hyrt.training.setup import build_model


def model_for_widths(config: Config, num_features: int, num_classes: int) -> GNN:
    """Build the configured model for a graph with these widths.

    Raises ConfigError or ValueError if there is no such model.
    """
    if find_model(config.model.kind).hetero:
        return build_model(config, _one_type(num_features, num_classes))
    # Models are built for a graph: this one has a single vertex in the last class.
    graph = Graph.from_arrays(
        name="none",
        indptr=np.zeros(2, np.int64),
        indices=np.zeros(0, np.int32),
        features=DenseFeatures(np.zeros((1, num_features), np.float32)),
        labels=np.full(1, num_classes - 1, np.int64),
        masks={},
    )
    return build_model(config, graph)


def _one_type(num_features: int, num_classes: int) -> Graph:
    """Return a heterogeneous graph with one vertex, for models that need one."""
    rows, no_edges = np.zeros((1, num_features), np.float32), np.zeros(0, np.int64)
    labels = np.full(1, num_classes - 1, np.int64)
    masks = {split: np.zeros(1, np.bool_) for split in SPLITS}
    return build_hetero_graph(
        "none", {"one": rows}, {("one", "to", "one"): (no_edges, no_edges)}, labels, masks, "one"
    )


def meta_model(config: Config, num_features: int, num_classes: int) -> GNN:
    """Build the model of `model_for_widths` on torch's meta device: shapes without values."""
    with torch.device("meta"):
        return model_for_widths(config, num_features, num_classes)
