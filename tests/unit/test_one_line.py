"""What classes with arrays print: one line, and never the arrays."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from unit.nn.block_cases import tensor_block

import hyrt
from hyrt.api import load, train
from hyrt.formatting import short_repr
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

ROOMS = ("graph", "sampling", "nn", "objective", "device", "training")
ARRAYS = re.compile(r"NDArray|Tensor|Parameter|\bArray\b|\bIds\b|Features|Topology|Block\b")
GRAPH = load("synthetic:tiny")


def dataclasses_with_arrays() -> list[type]:
    found = []
    for room in ROOMS:
        for module in pkgutil.walk_packages([f"{hyrt.__path__[0]}/{room}"], f"hyrt.{room}."):
            for name, kind in vars(importlib.import_module(module.name)).items():
                own = isinstance(kind, type) and kind.__module__ == module.name and not name.startswith("_")
                if own and is_dataclass(kind) and any(ARRAYS.search(str(f.type)) for f in fields(kind)):
                    found.append(kind)
    return found


def test_every_public_class_with_arrays_says_how_it_prints() -> None:
    found = dataclasses_with_arrays()
    assert len(found) > 15
    unsaid = [kind.__name__ for kind in found if kind.__repr__ is not short_repr]
    assert unsaid == ["Graph"]


def test_a_graph() -> None:
    assert repr(GRAPH) == (
        "Graph('synthetic:tiny': 2,000 vertices, 20,000 edges, 16 dense features, 4 classes)"
    )
    assert repr(GRAPH.topology) == "Topology(indptr=int64[2001], indices=int32[20000])"
    assert repr(GRAPH.vertices) == (
        "VertexTable(features=DenseFeatures(values=float32[2000, 16]), labels=int16[2000], "
        "masks={'train': bool[2000], 'val': bool[2000], 'test': bool[2000]}, vertex_ids=None, outputs=None)"
    )


def test_a_mini_batch_and_a_result() -> None:
    sampler = NeighborSampler(GRAPH, GRAPH.split("train"), [2, 2], 50, 0)
    batch = sampler.sample(0, sampler.units(0), Workers(1, "test"), in_place=False)
    block = tensor_block(batch.blocks[0])
    result = train(GRAPH, "gcn", train={"epochs": 1})
    for each in (batch, block, block.transposed(), result):
        text = repr(each)
        assert text.startswith(f"{type(each).__name__}(")
        assert "\n" not in text
        assert "array(" not in text
        assert "tensor(" not in text
        assert len(text) < 1200
    assert "targets=int32[50]" in repr(batch)
    assert f"sources=int32[{block.num_src}]" in repr(block)
    assert "model=<GNN>" in repr(result)


@dataclass
class Holder:
    value: Any
    _hidden: int = 3
    shut: int = field(default=4, repr=False)
    __repr__ = short_repr


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (1 / 3, "0.3333"),
        ("a\nb", "'a\\nb'"),
        ("x" * 200, "<str>"),
        (print, "<built-in function print>"),
        (lambda: 0, "<function>"),
        (np.zeros((3, 2), np.float16), "float16[3, 2]"),
        (np.zeros(0, np.int32), "int32[0]"),
        (torch.zeros(4, 1), "float32[4, 1]"),
        ([torch.zeros(2)] * 9, "[float32[2], float32[2], float32[2], float32[2], ... 9 in all]"),
        ({"a": np.zeros(2), "b": {}}, "{'a': float64[2], 'b': {}}"),
        (torch.nn.Linear(2, 2), "Linear(in_features=2, out_features=2, bias=True)"),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert repr(Holder(value)) == f"Holder(value={text})"
    assert repr(Holder(Holder(value))) == f"Holder(value=Holder(value={text}))"
