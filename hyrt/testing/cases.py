"""Models, graphs and mini-batches for the checks of devices, and a float64 reference step that follows the
formulas of the papers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.device import Device, InputForm
from hyrt.device.capabilities import FeatureCacheDevice
from hyrt.graph.feature_cache import CacheIndex, Rows, invert_ranking
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.features import QuantizedFeatures, quantize_graph
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import get_model_inputs
from hyrt.nn.model import GNN
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.saint_sampler import SaintSampler
from hyrt.sampling.sampler import HopSampler

VERTICES = 240
HUB = 7
"""Vertex with more in-neighbours than any fan-out."""
ISOLATED = (3, 50, 51)
"""Vertices without edges."""
SEED, STEP = 3, 2

ROWS = InputPlan("rows")
SINGLE_WORKER = Workers(1, "hyrt.testing")


@dataclass(frozen=True, slots=True)
class ModelCase:
    name: str
    """Name of the case in messages."""
    settings: dict[str, Any] = field(hash=False)
    """Arguments of the model's `Architecture`."""

    def build(self) -> GNN:
        """Build the model, with the same non-zero parameters each time."""
        model: GNN = randomize_parameters(GNN(Architecture(**self.settings)))
        return model


def randomize_parameters(model: Any, seed: int = 0) -> Any:
    """Set the parameters of a module to random values, which are the same in every call."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def model_cases() -> list[ModelCase]:
    """Return models with every layer kind, one to three layers of odd widths and all optional components."""
    cases = []
    kinds: dict[str, dict[str, Any]] = {
        "gcn": {"kind": "gcn"},
        "graphsage (mean)": {"kind": "graphsage"},
        "graphsage (sum)": {"kind": "graphsage", "aggregate": "sum"},
        "graphsage (max)": {"kind": "graphsage", "aggregate": "max"},
        "gin": {"kind": "gin"},
        "gat": {"kind": "gat", "heads": 3},
    }
    shapes = {
        2: {"in_features": 13, "hidden": 33, "num_classes": 2},
        1: {"in_features": 1, "num_classes": 47},
        3: {"in_features": 6, "hidden": 33, "num_classes": 3},
    }
    dropped, edge_dropout = {"dropout": 0.4, "input_dropout": 0.2}, {"attention_dropout": 0.3}
    for name, settings in kinds.items():
        for layers, shape in shapes.items():
            cases.append(ModelCase(f"{name}, layers={layers}", {**settings, **shape, "layers": layers}))
        cases.append(
            ModelCase(
                f"{name}, layers=3, dropout",
                {
                    **settings,
                    **shapes[3],
                    "layers": 3,
                    **dropped,
                    **(edge_dropout if "heads" in settings else {}),
                },
            )
        )
    components: dict[str, dict[str, Any]] = {
        "graphsage (mean)": {"norm": "layer"},
        "gcn": {"residual": True},
        "gin": {"norm": "layer"},
        "gat": {"norm": "layer", "residual": True, **dropped},
    }
    for name, extra in components.items():
        words = ", ".join(word for word in ("norm", "residual", "dropout") if word in extra)
        cases.append(
            ModelCase(f"{name}, layers=3, {words}", {**kinds[name], **shapes[3], "layers": 3, **extra})
        )
    return cases


class EdgeListModule(torch.nn.Module):
    """Module of a user that reads blocks only through edge lists, and ignores one of its parameters."""

    def __init__(self, in_features: int = 13, num_classes: int = 2) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(in_features, 9)
        self.unused = torch.nn.Parameter(torch.zeros(4))
        self.outer = torch.nn.Linear(9, num_classes)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        """Return scores [targets, classes] from rows [num_src, f]."""
        for block, layer in zip(blocks, (self.inner, self.outer), strict=True):
            sources, destinations = block.edge_index()
            total = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destinations, x[sources])
            x = layer(total + x[: block.num_dst]).tanh()
        return x


class StatisticsModule(torch.nn.Module):
    """Module with batch statistics, whose result depends on the split."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(13)
        self.outer = torch.nn.Linear(13, 2)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        """Return scores [targets, classes] from rows [num_src, f]."""
        return cast(torch.Tensor, self.outer(self.norm(x)[: blocks[-1].num_dst]))


def make_graph(features: int, classes: int, *, sparse: bool = False, row_format: str = "float32") -> Graph:
    """Build a directed graph with a hub, repeated edges, self-loops and isolated vertices; always the same.

    Features are sparse if `sparse` is set, otherwise dense rows in the format `row_format`.
    """
    rng = np.random.default_rng(11)
    degrees = rng.poisson(6, VERTICES)
    degrees[HUB] = min(3 * VERTICES // 4, 180)
    degrees[list(ISOLATED)] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    neighbors = np.setdiff1d(np.arange(VERTICES), ISOLATED)
    rows = [np.sort(rng.choice(neighbors, degree)) for degree in degrees]
    indices = np.concatenate(rows).astype(np.int32)
    x = rng.standard_normal((VERTICES, features)).astype(np.float32)
    store: DenseFeatures | SparseFeatures = DenseFeatures(x)
    if sparse:
        x[rng.random(x.shape) < 0.5] = 0
        nonzero = np.nonzero(x)
        pointer = np.concatenate([[0], np.cumsum((x != 0).sum(1))]).astype(np.int64)
        store = SparseFeatures(pointer, nonzero[1].astype(np.int32), x[nonzero], features)
    labels = rng.integers(0, classes, VERTICES).astype(np.int16)
    # The number of classes follows from the labels, so the last class needs a vertex.
    labels[-1] = classes - 1
    all_vertices = np.ones(VERTICES, np.bool_)
    graph = Graph.from_arrays("checks", indptr, indices, store, labels, {"train": all_vertices})
    return graph if row_format == "float32" else quantize_graph(graph, row_format)


def dense_rows(graph: Graph, vertices: NDArray[Any]) -> NDArray[np.float64]:
    """Return the features of some vertices as dense rows, [n, f] float64."""
    store = graph.features
    if isinstance(store, DenseFeatures):
        dense: NDArray[np.float64] = store.values[vertices].astype(np.float64)
        return dense
    if isinstance(store, QuantizedFeatures):
        quantized: NDArray[np.float64] = store.stored.to_float32()[vertices].astype(np.float64)
        return quantized
    assert isinstance(store, SparseFeatures)
    out = np.zeros((graph.num_vertices, store.width))
    owners = np.repeat(np.arange(graph.num_vertices), np.diff(store.indptr))
    out[owners, store.columns] = store.values
    chosen: NDArray[np.float64] = out[vertices]
    return chosen


def input_plan(model: torch.nn.Module, form: InputForm) -> InputPlan | None:
    """Return a model's input plan for an input form; None if the model does not support the form."""
    takes = get_model_inputs(model)
    if form == "hetero":
        # The form is for heterogeneous graphs only.
        return None
    if form == "aggregated":
        return None if takes.aggregation is None else InputPlan(form, takes.aggregation)
    if (form == "in_place" and not takes.in_place) or (form == "sparse" and not takes.sparse):
        return None
    return InputPlan(form)


def sample_targets(count: int = 40) -> NDArray[np.int32]:
    """Return distinct vertices: the hub, an isolated vertex, and others."""
    rest = np.random.default_rng(5).permutation(VERTICES)
    rest = rest[~np.isin(rest, [HUB, ISOLATED[0]])]
    return np.concatenate([[HUB, ISOLATED[0]], rest])[:count].astype(np.int32)


def sampled_batch(
    graph: Graph,
    layers: int,
    targets: NDArray[Any],
    plan: InputPlan,
    *,
    class_weights: bool = False,
    hops: HopSampler | None = None,
    step: int = STEP,
) -> MiniBatch:
    """Return a loaded mini-batch of sampled neighbours, with inputs in the form of `plan`.

    With `class_weights`, losses are weighted by class. `hops` replaces the host's sampler.
    """
    weights = np.linspace(0.25, 2.5, graph.num_classes, dtype=np.float32) if class_weights else None
    all_vertices = np.arange(graph.num_vertices)
    sampler = NeighborSampler(graph, all_vertices, [5, 4, 3][:layers], 64, SEED, weights)
    batch = sampler.sample(
        step, targets.astype(sampler.ids), SINGLE_WORKER, in_place=plan.in_place, hops=hops
    )
    Loader(graph.features).load(batch, plan, SINGLE_WORKER)
    return batch


def cache_some_rows(device: Device, graph: Graph) -> InputPlan:
    """Cache every third row on a device; return the input plan of mini-batches with only the other rows.

    The rows are quantized if the device supports this.
    """
    assert isinstance(device, FeatureCacheDevice)
    vertices = np.arange(0, graph.num_vertices, 3)[::-1]
    source = graph.features
    is_quantized = isinstance(source, QuantizedFeatures) and "quantized" in device.info.forms

    def pieces() -> Iterator[Rows]:
        # Reuse one buffer for all pieces, which the device must copy.
        half = -(-len(vertices) // 2)
        wide = np.empty((half, source.width), np.float32)
        for ids in (vertices[:half], vertices[half:]):
            if is_quantized:
                assert isinstance(source, QuantizedFeatures)
                rows = QuantizedRows.allocate(
                    source.row_format, (len(ids), source.width), source.column_scales
                )
                source.quantized_rows(ids, rows, SINGLE_WORKER)
                yield rows
            else:
                source.rows(ids, wide[: len(ids)], SINGLE_WORKER)
                yield wide[: len(ids)]

    device.keep_rows(len(vertices), pieces())
    places = CacheIndex(invert_ranking(vertices, graph.num_vertices), len(vertices))
    return InputPlan("cached", places=places, sends_quantized=is_quantized)


def add_edge_weights(graph: Graph) -> Graph:
    """Return the graph with edge weights."""
    weights = np.random.default_rng(2).lognormal(0, 0.8, graph.num_edges).astype(np.float32)
    return replace(graph, topology=replace(graph.topology, edge_weights=weights))


def saint_batch(graph: Graph, layers: int, plan: InputPlan) -> MiniBatch:
    """Return a loaded mini-batch of two GraphSAINT subgraphs, edge and target weights, and normalizer 2."""
    sampler = SaintSampler(graph, graph.split("train"), layers, 6, 3, 2, SEED, coverage=5)
    batch = sampler.sample(0, sampler.units(0), SINGLE_WORKER, in_place=plan.in_place)
    Loader(graph.features).load(batch, plan, SINGLE_WORKER)
    return batch


def full_graph_batches(
    graph: Graph,
    layers: int,
    targets: NDArray[Any],
    plan: InputPlan,
    *,
    steps: Sequence[int] = (STEP,),
    class_weights: bool = False,
) -> list[MiniBatch]:
    """Return loaded full-graph mini-batches for some targets, one per step, which share all arrays."""
    weights = np.linspace(0.25, 2.5, graph.num_classes, dtype=np.float32) if class_weights else None
    sampler = FullSampler(graph, targets, layers, SEED, weights)
    loader = Loader(graph.features)
    batches = []
    for step in steps:
        batch = sampler.sample(step, sampler.units(step), SINGLE_WORKER, in_place=plan.in_place)
        loader.load(batch, plan, SINGLE_WORKER)
        batches.append(batch)
    return batches


def square_blocks(
    ids: NDArray[Any], indptr: NDArray[Any], columns: NDArray[Any], degrees: NDArray[Any], layers: int
) -> list[Block]:
    """Return blocks with the same vertices and edges in every layer."""
    return [
        Block(
            indptr=indptr,
            columns=columns,
            destinations=ids,
            sources=ids,
            num_src=len(ids),
            degrees=degrees,
            source_degrees=degrees,
            layer=layer + 1,
            step=STEP,
            seed=SEED,
        )
        for layer in range(layers)
    ]


def edgeless_batch(rows: int, features: int, layers: int) -> MiniBatch:
    """Return a mini-batch of `rows` targets without neighbours, which is cheap for any size."""
    ids = np.arange(rows, dtype=np.int32)
    zeros = np.zeros(rows, np.int32)
    blocks = square_blocks(ids, np.zeros(rows + 1, np.int32), zeros[:0], zeros, layers)
    inputs = torch.ones(rows, features)
    return MiniBatch(STEP, ids, blocks, np.zeros(rows, np.int64), None, float(rows), inputs)


def host_arrays(batch: MiniBatch) -> dict[str, NDArray[Any]]:
    """Return every array of a loaded mini-batch that a device may read, by name."""
    named: dict[str, Any] = {
        "targets": batch.targets,
        "labels": batch.labels,
        "target_weights": batch.target_weights,
    }
    inputs = batch.inputs
    if isinstance(inputs, torch.Tensor):
        named["inputs"] = inputs.numpy()
    elif inputs is not None:
        values = inputs.values
        named["inputs"] = values.numpy() if isinstance(values, torch.Tensor) else values
    for block in batch.blocks:
        names = ("indptr", "columns", "destinations", "sources", "degrees", "source_degrees", "weights")
        edge_arrays = ("edge_types", "edge_weights", "edge_features", "run_weights")
        sums = ("weighted_degrees", "source_weighted_degrees")
        for attribute in (*names, *edge_arrays, *sums):
            named[f"blocks[{block.layer - 1}].{attribute}"] = getattr(block, attribute)
    return {name: array for name, array in named.items() if array is not None}


_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_DROPOUT_PURPOSE, _ATTENTION_PURPOSE = 2, 6


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """Expected float64 result of a mini-batch."""

    loss_sum: float
    loss_magnitude: float
    """Sum of absolute losses plus the largest absolute score, which is the scale of rounding errors."""
    correct: tuple[int, int]
    """Minimum and maximum number of correct targets, which differ if scores are equal up to rounding."""
    gradients: list[Tensor]
    """Gradient of each parameter."""
    names: list[str]


def reference_step(
    model: torch.nn.Module, parameters: Sequence[Tensor], batch: MiniBatch, rows: NDArray[np.float64]
) -> ReferenceResult:
    """Compute one step of a `GNN`, or of any other module in float64.

    `parameters` are the trainable parameters, in order. `rows` [num_src, f] float64 are the source rows of
    the first block, which replace the inputs of `batch`. The blocks of `batch` must be relabelled.
    """
    twin = copy.deepcopy(model).double().train()
    named = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    trainable = list(named.values())
    with torch.no_grad():
        for parameter, value in zip(trainable, parameters, strict=True):
            parameter.copy_(value)
    x = torch.from_numpy(rows)
    scores = _gnn(twin, batch.blocks, x) if isinstance(twin, GNN) else twin(batch.blocks, x)
    if batch.target_rows is not None:
        scores = scores[torch.from_numpy(batch.target_rows.astype(np.int64))]
    labels = torch.from_numpy(batch.labels.copy())
    target_scores = scores[torch.arange(len(labels)), labels]
    losses = scores.logsumexp(1) - target_scores
    if batch.target_weights is not None:
        losses = losses * torch.from_numpy(batch.target_weights.astype(np.float64))
    loss = losses.sum()
    loss.backward()
    other_scores = scores.detach().clone()
    other_scores[torch.arange(len(labels)), labels] = -torch.inf
    lead = target_scores.detach() - other_scores.amax(1)
    slack = 1e-5 * (1 + scores.detach().abs().amax(1))
    return ReferenceResult(
        loss_sum=loss.item(),
        loss_magnitude=float(losses.detach().abs().sum() + scores.detach().abs().max()),
        correct=(int((lead > slack).sum()), int((lead > -slack).sum())),
        gradients=[torch.zeros_like(p) if p.grad is None else p.grad for p in trainable],
        names=list(named),
    )


def _gnn(model: GNN, blocks: Sequence[Block], x: Tensor) -> Tensor:
    a = model.architecture
    named = dict(model.named_parameters())
    first = blocks[0]
    if a.input_dropout:
        assert first.sources is not None
        x = x * dropout_mask(first.sources, x.shape[1], a.input_dropout, first.seed, first.step, 0)
    for i, block in enumerate(blocks):
        is_last = i == len(blocks) - 1
        prefix = f"layers.{i}."
        layer_parameters = {
            name.removeprefix(prefix): p for name, p in named.items() if name.startswith(prefix)
        }
        out = _layer(a.kind, a.aggregate, block, x, layer_parameters, is_last, a.attention_dropout)
        if is_last:
            return out
        adds_last = a.kind == "deepgcn"
        shortcut_rows = torch.zeros_like(out)
        if a.residual and not (adds_last and i == 0):
            shortcut = named.get(f"shortcuts.{i}.weight")
            dst_rows = x[: block.num_dst]
            shortcut_rows = dst_rows if shortcut is None else dst_rows @ shortcut.T
        out = out if adds_last else out + shortcut_rows
        if a.norm == "layer":
            out = _layer_norm(out, named[f"norms.{i}.weight"], named[f"norms.{i}.bias"])
        x = out.relu() + shortcut_rows if adds_last else out.relu()
        if a.dropout:
            x = x * dropout_mask(block.destinations, x.shape[1], a.dropout, block.seed, block.step, i + 1)
    raise AssertionError("a model must have layers")


def _layer(
    kind: str, reduce: str, block: Block, x: Tensor, p: Mapping[str, Tensor], is_last: bool, dropout: float
) -> Tensor:
    dst_rows = x[: block.num_dst]
    if kind == "graphsage":
        mixed = _maxima(block, x) if reduce == "max" else _matrix(block, reduce) @ x
        return torch.cat([dst_rows, mixed], 1) @ p["weight"].T + p["bias"]
    if kind in ("gcn", "deepgcn"):
        loops = dst_rows / (_column(_sums(block)) + 1)
        return (_matrix(block, "gcn") @ x + loops) @ p["weight"].T + p["bias"]
    if kind == "gin":
        hidden = (dst_rows + _matrix(block, "sum") @ x) @ p["inner.weight"].T + p["inner.bias"]
        if "norm.weight" in p:
            hidden = _layer_norm(hidden, p["norm.weight"], p["norm.bias"])
        return hidden.relu() @ p["weight"].T + p["bias"]
    masks = attention_masks(block, len(p["weight"]), dropout)
    heads = [
        _attention(block, x @ w.T, to_source, to_destination, mask)
        for w, to_source, to_destination, mask in zip(
            p["weight"], p["source"], p["destination"], masks, strict=True
        )
    ]
    return (torch.stack(heads).mean(0) if is_last else torch.cat(heads, 1)) + p["bias"]


def _layer_norm(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight + bias


def _column(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float64))[:, None]


def _rows_of_edges(block: Block) -> NDArray[np.int64]:
    return np.repeat(np.arange(block.num_dst), np.diff(block.indptr))


def _edges(block: Block, *, weighted: bool) -> Tensor:
    """Return the number or total weight of the edges between each pair of vertices, [num_dst, num_src]."""
    out = np.zeros((block.num_dst, block.num_src))
    amounts = np.ones(block.num_edges)
    for factors in (block.weights, block.edge_weights) if weighted else ():
        if factors is not None:
            amounts *= factors
    np.add.at(out, (_rows_of_edges(block), block.columns), amounts)
    return torch.from_numpy(out)


def _sums(block: Block) -> NDArray[Any]:
    """Return in-degrees [num_dst], weighted if the edges have weights."""
    return block.degrees if block.weighted_degrees is None else block.weighted_degrees


def _matrix(block: Block, reduce: str) -> Tensor:
    edges, d = _edges(block, weighted=True), _column(_sums(block))
    sampled = _column(np.diff(block.indptr))
    if block.weights is None:
        edges = edges * _column(block.degrees) / sampled.clamp(min=1)
    if reduce == "mean":
        return edges / torch.where(d > 0, d, 1)
    if reduce == "sum":
        return edges
    weighted_source_degrees = block.source_weighted_degrees
    sources = _column(block.source_degrees if weighted_source_degrees is None else weighted_source_degrees)
    return edges / ((d + 1) * (sources.T + 1)).sqrt()


def _maxima(block: Block, x: Tensor) -> Tensor:
    rows = []
    for i in range(block.num_dst):
        sources = torch.from_numpy(block.columns[block.indptr[i] : block.indptr[i + 1]].astype(np.int64))
        rows.append(x[sources].max(0).values if len(sources) else x.new_zeros(x.shape[1]))
    return torch.stack(rows)


def _attention(block: Block, z: Tensor, to_source: Tensor, to_destination: Tensor, mask: Tensor) -> Tensor:
    times = _edges(block, weighted=False) + torch.eye(block.num_dst, block.num_src, dtype=torch.float64)
    score = (z @ to_source)[None, :] + (z[: block.num_dst] @ to_destination)[:, None]
    score = torch.where(score > 0, score, 0.2 * score)
    # The logarithm of the edge count weights repeated edges in the softmax, and excludes absent edges.
    return ((score + times.log()).softmax(1) * mask) @ z


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def dropout_mask(vertices: NDArray[Any], width: int, rate: float, seed: int, step: int, layer: int) -> Tensor:
    """Return the dropout factors of `vertices`, [n, width] float64, as `operators.dropout` computes them.

    Each column uses 16 bits of a random word, whose key is seed, step, layer (0: input) and vertex. `rate` is
    rounded to a multiple of 1/65536.
    """
    columns = np.arange(width, dtype=np.uint64)
    streams = _streams(_DROPOUT_PURPOSE, seed, step, layer, vertices)[:, None]
    return _factors(streams, columns // np.uint64(4), columns % np.uint64(4), rate)


def attention_masks(block: Block, heads: int, rate: float) -> Tensor:
    """Return dropout factors of attention weights, [heads, num_dst, num_src] float64.

    Each head uses 16 bits of a random word, keyed by both ends of the edge; `rate` is rounded to 1/65536.
    """
    sources = np.arange(block.num_src) if block.sources is None else block.sources
    streams = _streams(_ATTENTION_PURPOSE, block.seed, block.step, block.layer, block.destinations)
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    words = sources.astype(np.uint64) * np.uint64(-(-heads // 4)) + head // np.uint64(4)
    return _factors(streams[:, None], words, head % np.uint64(4), rate)


def _streams(purpose: int, seed: int, step: int, layer: int, vertices: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the random stream of each vertex, [n]."""
    with np.errstate(over="ignore"):
        golden = np.uint64(_GOLDEN)
        key = _mix(np.array([(seed + _GOLDEN) & _WORD], np.uint64))
        for part in (purpose, step, layer):
            key = _mix(key + np.uint64(part + 1) * golden)
        return _mix(key + (vertices.astype(np.uint64) + np.uint64(1)) * golden)


def _factors(
    streams: NDArray[np.uint64], words: NDArray[np.uint64], lanes: NDArray[np.uint64], rate: float
) -> Tensor:
    """Return 0 for dropped elements, whose 16 bits are below the threshold, and the scale for all others."""
    with np.errstate(over="ignore"):
        random_words = _mix(streams + (words + np.uint64(1)) * np.uint64(_GOLDEN))
    bits = (random_words >> (np.uint64(16) * lanes)) & np.uint64(0xFFFF)
    threshold = min(round(rate * 65536), 65535)
    return torch.from_numpy((bits >= np.uint64(threshold)) * (65536 / (65536 - threshold)))
