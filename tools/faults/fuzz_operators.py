"""Fuzzed calls of the sparse operators, of layers and of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from fuzz_objects import (
    CLASSES,
    COUNT,
    EDGE_ROWS,
    ROWS,
    WIDTH,
    Call,
    FuzzLayer,
    OnlyWrong,
    V,
    bad_blocks,
    cached_batch,
    floats,
    model,
    num_edges,
    small_batch,
    tensor,
    topology_kind,
    user_batch,
    user_block,
)
from fuzz_values import Arrays, Kind, flag, whole, words_of

import hyrt
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import describe
from hyrt.nn.layers import GatLayer, GcnLayer, GinLayer, SageLayer
from hyrt.nn.operators.aggregate import aggregate, aggregate_into, compute_scales
from hyrt.nn.operators.attention import attend


def ops_calls() -> list[Call]:
    ops = hyrt.ops
    per_vertex = Arrays(lambda: floats(V), optional=True)
    endpoint = words_of(("source", "destination"), optional=True)
    tensors = Arrays(lambda: tensor(V, WIDTH))
    calls = []
    for name, rows in (("arrays", ROWS), ("tensors", tensors)):
        calls += [
            Call(
                f"ops.spmm, {name}",
                ops.spmm,
                {
                    "graph": topology_kind(),
                    "x": rows,
                    "edge_values": EDGE_ROWS
                    if name == "arrays"
                    else Arrays(lambda: tensor(num_edges()), optional=True),
                    "reduce": words_of(("sum", "mean", "sum"), optional=True),
                    "transposed": flag(),
                    "row_scale": per_vertex,
                    "source_scale": per_vertex,
                    "self_scale": per_vertex,
                },
            ),
            Call(
                f"ops.sddmm, {name}",
                ops.sddmm,
                {
                    "graph": topology_kind(),
                    "left": rows,
                    "right": rows,
                    "op": words_of(("dot", "add", "mul", "div", "sub"), optional=True),
                    "left_at": endpoint,
                    "right_at": endpoint,
                },
            ),
        ]
    edge_tensor = Arrays(lambda: tensor(num_edges(), 2), any_axes=True)
    scores = Arrays(lambda: tensor(V, 2))
    return [
        *calls,
        Call(
            "ops.spmm, max",
            lambda graph, x: ops.spmm(graph, x, reduce="max"),
            {"graph": topology_kind(), "x": Arrays(lambda: floats(V, WIDTH), any_axes=True)},
        ),
        Call(
            "ops.edge_reduce",
            ops.edge_reduce,
            {"graph": topology_kind(), "values": edge_tensor, "reduce": words_of(("sum", "mean", "max"))},
        ),
        Call("ops.edge_softmax", ops.edge_softmax, {"graph": topology_kind(), "scores": edge_tensor}),
        Call(
            "ops.attention",
            ops.attention,
            {
                "graph": topology_kind(),
                "x": Arrays(lambda: tensor(V, 2, 3)),
                "at_source": scores,
                "at_destination": scores,
                "negative_slope": Kind(lambda: 0.1, wrong=[("'a'", lambda: "a")], optional=True),
                "self_loops": flag(),
            },
        ),
        Call("ops.threads", lambda count: ops.threads(count).__enter__().close(), {"count": COUNT}),
    ]


def block_calls() -> list[Call]:
    shared_block = cached_batch().blocks[0]
    edges = shared_block.num_edges
    fields = {
        "indptr": Arrays(lambda: shared_block.indptr),
        "columns": Arrays(lambda: shared_block.columns, bound=shared_block.num_src),
        "destinations": Arrays(lambda: shared_block.destinations),
        "sources": Arrays(lambda: shared_block.sources),
        "num_src": whole(shared_block.num_src, wrong=(-1, 1, 10**9, "3", 3.5, None)),
        "degrees": Arrays(lambda: shared_block.degrees),
        "source_degrees": Arrays(lambda: shared_block.source_degrees),
        "layer": whole(1, wrong=("a", -1, None, 3.5)),
        "weights": Arrays(lambda: floats(edges), optional=True),
    }
    x = Arrays(lambda: tensor(shared_block.num_src, WIDTH))
    layers = {
        "SageLayer": lambda: SageLayer(WIDTH, 4),
        "GcnLayer": lambda: GcnLayer(WIDTH, 4),
        "GinLayer": lambda: GinLayer(WIDTH, 4),
        "GatLayer": lambda: GatLayer(WIDTH, 2, 2),
        "SagaLayer": lambda: FuzzLayer(WIDTH, 4),
    }

    def forward(make: Any) -> Any:
        return lambda x, **fields: make()(user_block(**fields), x).sum().backward()

    def run_in_place(x: Any, **fields: Any) -> Any:
        inner = small_batch(in_place=True).blocks[0]
        block_fields = {"sources": None, "num_src": V, "columns": inner.columns, "indptr": inner.indptr}
        block_fields |= {
            "destinations": inner.destinations,
            "degrees": inner.degrees,
            "source_degrees": inner.source_degrees,
        }
        return aggregate(user_block(**block_fields | fields), x, "mean")

    inner = small_batch(in_place=True).blocks[0]
    return [
        Call("Block.transposed", lambda **fields: user_block(**fields).transposed(), fields, 2),
        Call("Block.edge_index", lambda **fields: user_block(**fields).edge_index(), fields),
        *(Call(f"nn.{name}", forward(make), {"x": x, **fields}, 1.5) for name, make in layers.items()),
        Call(
            "nn.aggregate",
            lambda x, aggregation, **fields: aggregate(user_block(**fields), x, aggregation),
            {"x": x, "aggregation": words_of(("sum", "mean", "gcn", "max")), **fields},
        ),
        Call(
            "nn.aggregate, in place",
            run_in_place,
            {
                "x": ROWS,
                "columns": Arrays(lambda: inner.columns, bound=V),
                "destinations": Arrays(lambda: inner.destinations, bound=V),
            },
        ),
        Call(
            "nn.aggregate_into",
            lambda x, out, accumulate, **fields: aggregate_into(
                Aggregation("sum", "none"), user_block(**fields), x, out, accumulate=accumulate
            ),
            {
                "x": Arrays(lambda: floats(shared_block.num_src, WIDTH)),
                "out": Arrays(lambda: floats(shared_block.num_dst, WIDTH)),
                "accumulate": flag(optional=False),
            },
        ),
        Call(
            "nn.attend",
            lambda x, u_src, u_dst: attend(user_block(), x, u_src, u_dst),
            {"x": x, "u_src": Arrays(lambda: tensor(2, WIDTH)), "u_dst": Arrays(lambda: tensor(2, WIDTH))},
        ),
        Call(
            "nn.compute_scales",
            lambda aggregation, dtype, **fields: compute_scales(aggregation, user_block(**fields), dtype),
            {
                "aggregation": Kind(
                    lambda: Aggregation("gcn", "add"),
                    also=[("sum", lambda: Aggregation("sum", "none"))],
                    wrong=[("3", lambda: 3)],
                ),
                "dtype": Kind(lambda: np.dtype(np.float32), wrong=[("'x'", lambda: "x")]),
                "degrees": fields["degrees"],
                "indptr": fields["indptr"],
            },
        ),
        Call(
            "nn.Aggregation",
            Aggregation,
            {
                "reduce": words_of(("sum", "mean")),
                "self_path": words_of(("none", "add", "concat")),
                "epsilon": Kind(lambda: 0.5, wrong=[("'a'", lambda: "a")], optional=True),
            },
        ),
        Call(
            "nn.stack",
            lambda blocks, x: hyrt.nn.stack(FuzzLayer(WIDTH, 4), FuzzLayer(4, CLASSES)).eval()(blocks, x),
            {
                "blocks": OnlyWrong(lambda: user_batch().blocks, wrong=bad_blocks()),
                "x": Arrays(lambda: cached_batch().inputs),
            },
        ),
        Call(
            "GNN.forward",
            lambda blocks, x: model()(blocks, x),
            {
                "blocks": OnlyWrong(lambda: user_batch().blocks, wrong=bad_blocks()),
                "x": Arrays(lambda: cached_batch().inputs),
            },
        ),
        Call(
            "nn.stack, layers",
            lambda layers, norm, residual, dropout: hyrt.nn.stack(
                *layers, norm=norm, residual=residual, dropout=dropout
            ),
            {
                "layers": OnlyWrong(
                    lambda: [FuzzLayer(WIDTH, 4)],
                    wrong=[
                        ("none", list),
                        ("3", lambda: [3]),
                        ("None", lambda: [None]),
                        ("widths", lambda: [FuzzLayer(WIDTH, 4), FuzzLayer(5, 4)]),
                    ],
                ),
                "norm": words_of(("none", "layer")),
                "residual": flag(optional=False),
                "dropout": Kind(
                    lambda: 0.1, wrong=[("2.0", lambda: 2.0), ("'a'", lambda: "a"), ("-1", lambda: -1)]
                ),
            },
        ),
        Call(
            "nn.SagaLayer, widths",
            lambda in_features, out_features: FuzzBare(in_features, out_features),
            {"in_features": COUNT, "out_features": COUNT},
        ),
        Call(
            "nn.describe",
            lambda model, device: describe(model, device),
            {"model": Kind(model, wrong=[("3", lambda: 3)]), "device": Kind(lambda: "fpga:0")},
        ),
    ]


class FuzzBare(hyrt.nn.SagaLayer):
    """A layer without parameters."""

    def apply_edge(self, edge: Any) -> torch.Tensor:
        return edge.src

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return gathered
