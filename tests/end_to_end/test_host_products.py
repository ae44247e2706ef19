"""Matrix products on the host: one function computes them, and no bit depends on addresses or threads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values

import hyrt
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.operators import blocked_matmul
from hyrt.runtime.buffer_pool import ALIGNMENT

ROOT = Path(__file__).parents[2]
PRODUCTS = {"mm", "addmm", "addmm_", "matmul", "bmm", "baddbmm", "mv", "addmv", "einsum", "linear"}
# The products of torch and numpy outside of hyrt.nn.operators.blocked_matmul, and why they are there.
PLACES = {
    "hyrt/nn/operators/blocked_matmul.py": 6,
    # Operands are parameters, each at the beginning of its memory; the results are as small as they are.
    "hyrt/nn/layers.py": 2,
    "hyrt/nn/hetero/layers.py": 5,
    "hyrt/nn/hetero/relation_sums.py": 2,
    # Layers that users may write: what reads them replaces the call by `hyrt.nn.operators.linear.linear`.
    "hyrt/nn/message_passing/layers.py": 1,
    "hyrt/nn/message_passing/tracing.py": 1,
    # One pair of rows at a time.
    "hyrt/nn/fused/fused_gather.py": 1,
    "hyrt/objective/link_prediction.py": 1,
    # Devices that run torch.
    "devices/hyrt_devices/cuda/tile_math.py": 4,
    "hyrt/nn/operators/tensor_ops.py": 4,
    # What an exported module computes without hyrt, and the references of the conformance suite.
    "hyrt/report/plain_gnn.py": 3,
    "hyrt/report/plain_hetero_gnn.py": 10,
    "hyrt/testing/cases.py": 12,
    "hyrt/testing/check_capabilities.py": 5,
    # Checks, statistics and fits in numpy that no training reads.
    "hyrt/balance/stage_times.py": 3,
    "hyrt/graph/graph.py": 2,
    "hyrt/graph/synthetic/degree_distribution.py": 3,
    "hyrt/predict/hetero_workload.py": 1,
    "hyrt/report/plots.py": 2,
}


def products_in(source: str) -> int:
    """Count the products that a module calls by the names of torch and numpy."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        count += isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            count += node.func.attr in PRODUCTS and (
                node.func.attr != "linear" or owner.endswith("functional")
            )
    return count


def test_no_other_module_multiplies() -> None:
    found = {
        str(path.relative_to(ROOT)): count
        for folder in ("hyrt", "devices/hyrt_devices")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (count := products_in(path.read_text()))
    }
    assert found == PLACES


def test_torch_threads_have_one_owner() -> None:
    owners = [
        str(path.relative_to(ROOT))
        for folder in ("hyrt", "devices/hyrt_devices")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "torch.set_num_threads" in path.read_text()
    ]
    assert owners == ["hyrt/nn/torch_threads.py"]


class ProductAddresses:
    """Records the products whose operands lie in memory that does not begin at a cache line.

    A view inside of aligned memory is allowed: its offset depends on shapes alone. An array of the host that
    begins anywhere is not, because its address may be another one in the next run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.misaligned: list[str] = []

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **more: Any) -> Any:
            self.count += 1
            operands = [*arguments, *more.values()]
            operands += [
                each for operand in operands if isinstance(operand, tuple | list) for each in operand
            ]
            for operand in operands:
                if isinstance(operand, torch.Tensor) and operand.numel() and operand.device.type == "cpu":
                    start = operand.untyped_storage().data_ptr()
                    if start % ALIGNMENT and operand.data_ptr() % ALIGNMENT:
                        self.misaligned.append(f"{name} of {tuple(operand.shape)} at {start % 64}")
            return function(*arguments, **more)

        return checked


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> ProductAddresses:
    watched = ProductAddresses()
    for owner, names in (
        (torch, PRODUCTS - {"linear", "addmm_"}),
        (torch.Tensor, {"mm", "matmul", "__matmul__", "__rmatmul__", "addmm", "addmm_", "bmm"}),
        (torch.nn.functional, {"linear"}),
        (blocked_matmul, {"ONEDNN"}),
    ):
        for name in names:
            function = getattr(owner, name)
            if function is not None:
                monkeypatch.setattr(owner, name, watched.watch(name, function))
    return watched


def graph_at(offset: int, *, edge_columns: int = 0) -> Graph:
    """A graph whose feature matrix begins `offset` bytes behind a cache line."""
    graph = random_graph(201, features=7)
    values = graph.vertices.features.values
    memory = np.empty(values.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    rows = memory[start : start + values.nbytes].view(np.float32).reshape(values.shape)
    rows[:] = values
    graph = replace(graph, vertices=replace(graph.vertices, features=DenseFeatures(rows)))
    return with_values(graph, edge_columns) if edge_columns else graph


TILES = {"fullgraph": {"chunks": 3}}
RUNS: dict[str, dict[str, Any]] = {
    "mini-batches, graphsage": {"model": {"kind": "graphsage"}, "data": {"batch_size": 32}},
    "mini-batches, gat": {"model": {"kind": "gat", "heads": 2}, "data": {"batch_size": 32}},
    "mini-batches, gin, bf16": {"model": {"kind": "gin"}, "train": {"precision": "bf16"}},
    "full graph, graphsage, LayerNorm": {
        "full_graph": True,
        "model": {"kind": "graphsage", "norm": "layer", "residual": True},
    },
    "full graph, edge features": {"full_graph": True, "model": {"kind": "edge-gat"}, "edge_columns": 3},
    "tiles, gcn": {"full_graph": True, "model": {"kind": "gcn"}, **TILES},
    "tiles, gin": {"full_graph": True, "model": {"kind": "gin", "dropout": 0.3}, **TILES},
    "tiles, gat": {"full_graph": True, "model": {"kind": "gat", "heads": 2}, **TILES},
}

SHORT = {"mini-batches, graphsage", "tiles, gin"}
"""Those that CI trains on emulated processors as well."""


def trained_weights(graph: Graph, threads: int = 1, **sections: Any) -> dict[str, torch.Tensor]:
    result = hyrt.train(
        graph,
        **{
            **sections,
            "model": {"hidden": 12, "layers": 2, **sections["model"]},
            "devices": ["cpu:0"],
            "runtime": {"sample_threads": 1, "load_threads": 1, "train_threads": threads},
            "train": {"epochs": 2, **sections.get("train", {})},
            "balance": {"policy": "static"},
            "evaluate": {"every": 0},
        },
    )
    return {name: tensor.clone() for name, tensor in result.model.state_dict().items()}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.bits] if name in SHORT else []) for name in RUNS]
)
def test_no_bit_depends_on_addresses_or_threads(name: str, addresses: ProductAddresses) -> None:
    sections = dict(RUNS[name])
    edge_columns = sections.pop("edge_columns", 0)
    first = trained_weights(graph_at(0, edge_columns=edge_columns), **sections)
    for offset, threads in ((4, 3), (16, 2)):
        other = trained_weights(graph_at(offset, edge_columns=edge_columns), threads, **sections)
        assert [key for key in first if not torch.equal(first[key], other[key])] == []
    assert addresses.count > 0
    assert addresses.misaligned == []
