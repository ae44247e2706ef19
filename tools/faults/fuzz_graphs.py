"""Fuzzed calls that make, open, write, partition and train on graphs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fuzz_objects import (
    CLASSES,
    SEED,
    WIDTH,
    Call,
    FuzzLayer,
    OnlyWrong,
    V,
    _in_folder,
    any_graph,
    broken_graphs,
    floats,
    hetero_graph,
    num_edges,
    quick_train,
    small_graph,
    tensor,
)
from fuzz_values import Arrays, Drawn, Kind, flag, whole, words_of

import hyrt
from hyrt.graph.graph import Graph
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.registry import METHODS, get_partition_method
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.nn.model import GNN


def graph_calls() -> list[Call]:
    base = small_graph()
    fields = {
        "name": Kind(lambda: "own"),
        "indptr": Arrays(lambda: base.topology.indptr),
        "indices": Arrays(lambda: base.topology.indices, bound=V),
        "labels": Arrays(lambda: base.labels),
        "edge_weights": Arrays(lambda: floats(num_edges()) ** 2 + 1, optional=True),
        "edge_features": Arrays(lambda: floats(num_edges(), 2), optional=True),
        "edge_types": Arrays(lambda: np.zeros(num_edges(), np.int64), optional=True),
    }

    def load(features: Any, **arrays: Any) -> Any:
        graph = hyrt.load(Graph.from_arrays(features=DenseFeatures(features), masks=base.masks, **arrays))
        return graph.topology.transposed, graph.split("train")

    def of_features(features: Any) -> Any:
        return hyrt.load(replace(base, vertices=replace(base.vertices, features=features)), normalize="row")

    def data(**fields: Any) -> Any:
        # The import takes seconds, and few calls need it.
        from torch_geometric.data import Data

        names = {
            "train_mask": base.masks["train"],
            "val_mask": base.masks["val"],
            "test_mask": base.masks["test"],
        }
        masks = {name: torch.from_numpy(mask) for name, mask in names.items()}
        return hyrt.load(Data(**masks | fields))

    ends = np.stack([base.topology.indices, np.repeat(np.arange(V), np.diff(base.topology.indptr))]).astype(
        np.int64
    )
    return [
        Call("hyrt.load, arrays", load, {"features": Arrays(lambda: floats(V, WIDTH)), **fields}, 3),
        Call(
            "hyrt.load, graph",
            lambda **given: hyrt.load(**given),
            {"source": any_graph(), "normalize": words_of(("none", "row", "length", "standard", "auto"))},
            2,
        ),
        Call(
            "hyrt.load, sparse",
            lambda indptr, columns, values, width: of_features(
                SparseFeatures(indptr, columns, values, width)
            ),
            {
                "indptr": Arrays(lambda: np.arange(V + 1, dtype=np.int64)),
                "columns": Arrays(lambda: np.zeros(V, np.int32), bound=4),
                "values": Arrays(lambda: np.ones(V, np.float32)),
                "width": whole(4, wrong=(0, -1, "a", None)),
            },
            2,
        ),
        Call(
            "hyrt.load, PyG",
            data,
            {
                "x": Arrays(lambda: tensor(V, WIDTH)),
                "edge_index": Arrays(lambda: torch.from_numpy(ends), bound=V),
                # [V, 1] is the shape of OGB's labels.
                "y": Arrays(lambda: torch.from_numpy(base.labels), any_axes=True),
            },
            2,
        ),
        Call("hyrt.load, others", lambda source: hyrt.load(source), {"source": OnlyObjects(small_graph)}),
        Call(
            "Graph.split",
            lambda **given: small_graph().split(**given),
            {"name": words_of(("train", "val")), "column": whole(0, wrong=(-1, 7, "a", None, 3.5))},
        ),
        Call(
            "hyrt.save",
            lambda destination, **given: hyrt.save(
                **{"destination": _in_folder(destination), "source": small_graph()} | given
            ),
            {
                "source": any_graph(),
                "destination": Kind(lambda: "a.npz"),
                "feature_dtype": words_of(("float16", "int8"), optional=True),
                "normalize": words_of(("none", "row"), optional=True),
                "order": words_of(("degree",), optional=True),
                "reverse": Kind(lambda: False, wrong=[("'no'", lambda: "no")], optional=True),
                "force": flag(),
            },
        ),
        *(
            Call(
                f"partition.{name}",
                lambda name=name, **given: get_partition_method(name).homes(**given),
                {
                    "topology": Kind(
                        lambda: small_graph().topology,
                        wrong=[
                            (words, lambda make=make: make().topology) for words, make in broken_graphs()[:8]
                        ],
                    ),
                    "training": Arrays(lambda: base.masks["train"]),
                    "num_parts": whole(4, wrong=(0, -1, V + 1, 3.5, "a", None)),
                    "seed": SEED,
                },
                0.7 if name in ("random", "block") else 0.2,
            )
            for name in METHODS
        ),
        Call("partition_method", get_partition_method, {"name": words_of(("random", "block"))}),
        Call(
            "block_volumes",
            count_block_volumes,
            {
                "indptr": Arrays(lambda: base.topology.indptr),
                "indices": Arrays(lambda: base.topology.indices, bound=V),
                "blocks": Arrays(lambda: np.arange(V) % 4, bound=4),
                "num_blocks": whole(4, wrong=(0, -1, 2, "a", None)),
            },
        ),
    ]


class OnlyObjects(Kind):
    """Objects of hyrt, of other libraries, and of unsupported types."""

    def draw_right(self, draw: random.Random) -> Drawn:
        return self.draw_wrong(draw)


def _convolution() -> type[torch.nn.Module]:
    # The import takes seconds, and few calls need it.
    from torch_geometric.nn import SAGEConv

    return SAGEConv


def train_calls() -> list[Call]:
    sections = {
        name: Kind(dict, wrong=[("3", lambda: 3), ("unknown", lambda: {"unknown": 1})], optional=True)
        for name in ("train", "data", "sampler", "runtime")
    }
    wrong_models: list[tuple[str, Callable[[], Any]]] = [
        ("'gnc'", lambda: "gnc"),
        ("a class", lambda: GNN),
        ("None", lambda: None),
        ("3", lambda: 3),
        ("nothing", lambda: {}),
        ("returns None", lambda: _Module(lambda b, x: None)),
        ("returns rows", lambda: _Module(lambda b, x: x)),
        ("returns one", lambda: _Module(lambda b, x: x.sum())),
        ("raises", lambda: _Module(lambda b, x: {}["a"])),
        ("no gradient", lambda: _Module(lambda b, x: torch.zeros(8, 3))),
    ]
    folder = Kind(lambda: _in_folder("run"))
    return [
        Call(
            "hyrt.train",
            lambda graph, **given: hyrt.train(graph, "gcn", **given),
            {"graph": any_graph(), **sections},
            0.4,
        ),
        Call(
            "hyrt.train, model",
            lambda model: quick_train(small_graph(), model),
            {"model": Kind(lambda: "gcn", wrong=wrong_models[:4] + wrong_models[5:7])},
            0.4,
        ),
        Call(
            "hyrt.load_run",
            hyrt.load_run,
            {
                "folder": folder,
                "graph": Kind(lambda: None, optional=True),
                "model": Kind(lambda: None, optional=True),
                "checkpoint": Kind(lambda: "best", optional=True),
            },
        ),
        Call(
            "hyrt.from_pyg",
            lambda convolutions, **given: hyrt.from_pyg(*convolutions, **given),
            {
                "convolutions": OnlyWrong(
                    lambda: [_convolution()(WIDTH, 4), _convolution()(4, 3)],
                    wrong=[
                        ("none", list),
                        ("3", lambda: [3]),
                        ("a class", lambda: [_convolution()]),
                        ("widths", lambda: [_convolution()(WIDTH, 4), _convolution()(5, 3)]),
                    ],
                ),
                "dropout": Kind(
                    lambda: 0.1, wrong=[("'a'", lambda: "a"), ("2.0", lambda: 2.0), ("None", lambda: None)]
                ),
                "activation": Kind(
                    lambda: torch.relu, wrong=[("3", lambda: 3)], optional=True, harmless=("a class",)
                ),
            },
        ),
        Call(
            "hyrt.from_dgl",
            lambda convolutions: hyrt.from_dgl(*convolutions),
            {
                "convolutions": OnlyWrong(
                    lambda: [3], wrong=[("none", list), ("3", lambda: [3]), ("None", lambda: [None])]
                )
            },
        ),
        Call(
            "nn.hetero_stack",
            lambda graph, layers: hyrt.nn.hetero_stack(graph, *layers),
            {
                "graph": Kind(
                    hetero_graph,
                    wrong=[("homogeneous", small_graph), ("3", lambda: 3), ("None", lambda: None)],
                ),
                "layers": OnlyWrong(
                    lambda: [FuzzLayer(WIDTH, 4)], wrong=[("3", lambda: [3]), ("none", list)]
                ),
            },
        ),
    ]


class _Module(torch.nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, CLASSES)
        self._result = result

    def forward(self, blocks: Any, x: Any) -> Any:
        return self._result(blocks, self.inner(x))
