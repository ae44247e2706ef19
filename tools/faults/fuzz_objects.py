"""Graphs, blocks, mini-batches and models for fuzzed calls, and kinds of arguments."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz_values import Arrays, Drawn, Kind, guarded, whole
from hyrt_devices.cpu import CpuDevice

import hyrt
from hyrt.device import DeviceOptions
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler

V, WIDTH, CLASSES, LAYERS = 60, 5, 3, 2


ALONE = Workers(1, "fuzz")


@dataclass(frozen=True)
class Call:
    """A function or method of the public API."""

    name: str
    make: Callable[..., Any]
    arguments: Mapping[str, Kind] = field(hash=False)
    weight: float = 1.0

    def draw(self, draw: random.Random) -> dict[str, Drawn]:
        """Choose the arguments; in most calls, one of them is invalid."""
        names = list(self.arguments)
        count = draw.choice((0, 1, 1, 1, 1, 2)) if names else 0
        wrong = set(draw.sample(names, min(count, len(names))))
        drawn = {}
        for name, kind in self.arguments.items():
            if name in wrong:
                drawn[name] = kind.draw_wrong(draw)
            elif not kind.optional or draw.random() < 0.5:
                drawn[name] = kind.draw_right(draw)
        return drawn


class FuzzLayer(hyrt.nn.SagaLayer):
    """A user-defined layer."""

    def __init__(self, in_features: Any, out_features: Any) -> None:
        super().__init__(in_features, out_features)
        self.weight = torch.nn.Parameter(torch.ones(out_features, in_features))

    def apply_edge(self, edge: Any) -> torch.Tensor:
        return edge.src * torch.sigmoid(edge.dst)

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return (vertex + gathered) @ self.weight.T


@cache
def small_graph() -> Graph:
    """Return a graph with vertices of high degree and of degree 0; its arrays end at unreadable pages."""
    rng = np.random.default_rng(4)
    degrees = rng.poisson(4, V)
    degrees[0], degrees[-1] = 30, 0
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    rows = [np.sort(rng.choice(V, degree, replace=False)) for degree in degrees]
    indices = np.concatenate(rows).astype(np.int32)
    labels = rng.integers(0, CLASSES, V).astype(np.int64)
    labels[:CLASSES] = np.arange(CLASSES)
    x = rng.standard_normal((V, WIDTH)).astype(np.float32)
    part = rng.integers(0, 3, V)
    masks = {name: part == i for i, name in enumerate(("train", "val", "test"))}
    arrays = (guarded(indptr), guarded(indices))
    return Graph.from_arrays("fuzz", *arrays, DenseFeatures(guarded(x)), guarded(labels), masks)


@cache
def hetero_graph() -> Graph:
    return hyrt.load("synthetic:hetero,vertices=80")


def num_edges() -> int:
    return small_graph().num_edges


def targets() -> Any:
    return small_graph().split("train").astype(np.int32)


def small_batch(*, in_place: bool = False) -> MiniBatch:
    sampler = NeighborSampler(small_graph(), targets(), [3, 2], 8, 1)
    batch = sampler.sample(0, sampler.units(0), ALONE, in_place=in_place)
    batch.inputs = torch.from_numpy(small_graph().features.values[batch.blocks[0].sources])
    return batch


@cache
def cached_batch() -> MiniBatch:
    return small_batch()


def block() -> Block:
    return cached_batch().blocks[0]


def user_block(**fields: Any) -> Block:
    """Return a user-made block."""
    names = ("indptr", "columns", "destinations", "sources", "num_src", "degrees", "source_degrees", "layer")
    return Block(**{name: getattr(block(), name) for name in names} | fields)


def user_batch(**fields: Any) -> MiniBatch:
    """Return a user-made mini-batch."""
    batch = cached_batch()
    blocks = [user_block(), replace(batch.blocks[1])]
    known = {"step": 0, "targets": batch.targets, "blocks": blocks, "labels": batch.labels}
    return MiniBatch(**known | {"target_weights": None, "normalizer": 8.0, "inputs": batch.inputs} | fields)


def model() -> GNN:
    kind = Architecture(kind="gcn", in_features=WIDTH, hidden=4, num_classes=CLASSES, layers=LAYERS)
    torch.manual_seed(0)
    return GNN(kind)


def opened() -> CpuDevice:
    device = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions())
    network = model()
    device.load(network, list(network.parameters()))
    return device


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def tensor(*shape: int) -> torch.Tensor:
    return torch.from_numpy(floats(*shape))


def graph_kind() -> Kind:
    return Kind(
        small_graph,
        wrong=[(repr(bad), lambda bad=bad: bad) for bad in (None, 3)] + [("an array", lambda: np.arange(4))],
    )


def broken_graphs() -> list[tuple[str, Callable[[], Any]]]:
    """Return graphs with inconsistent arrays."""
    made = []
    for key, bad in (
        ("indices", lambda a: np.where(np.arange(len(a)) == 3, V, a)),
        ("indices", lambda a: np.where(np.arange(len(a)) == 3, -5, a)),
        ("indices", lambda a: a[:-1]),
        ("indptr", lambda a: a + 1),
        ("indptr", lambda a: a[::-1].copy()),
        ("indptr", lambda a: np.append(a, 10**6)),
        ("indptr", lambda a: a.astype(np.float64)),
        ("indptr", lambda a: None),
        ("edge_weights", lambda a: np.ones(3, np.float32)),
        ("edge_features", lambda a: np.ones((3, 2), np.float32)),
        ("edge_types", lambda a: np.zeros(3, np.int64)),
    ):

        def make(key: str = key, bad: Any = bad) -> Graph:
            graph = small_graph()
            topology = replace(graph.topology, **{key: bad(getattr(graph.topology, key))})
            return replace(graph, topology=topology)

        made.append((f"graph of other {key}", make))
    for key, bad in (
        ("labels", lambda a: a[:-1]),
        ("labels", lambda a: np.zeros(0, np.int64)),
        ("features", lambda a: DenseFeatures(a.values[:-1])),
        ("features", lambda a: DenseFeatures(a.values.reshape(-1))),
        ("features", lambda a: SparseFeatures(np.arange(V + 1), np.full(V, 9), np.ones(V, np.float32), 5)),
        ("masks", lambda a: {name: mask[:-1] for name, mask in a.items()}),
        ("masks", lambda a: {name: mask.astype(np.int64) for name, mask in a.items()}),
    ):

        def make_table(key: str = key, bad: Any = bad) -> Graph:
            graph = small_graph()
            return replace(
                graph, vertices=replace(graph.vertices, **{key: bad(getattr(graph.vertices, key))})
            )

        made.append((f"graph of other {key}", make_table))
    return made


def any_graph() -> Kind:
    return Kind(small_graph, wrong=[*broken_graphs(), ("3", lambda: 3)])


def topology_kind() -> Kind:
    return Kind(
        lambda: small_graph().topology,
        also=[("graph", small_graph)],
        wrong=[
            (words, lambda make=make: make().topology)
            for words, make in broken_graphs()
            if "indptr" in words or "indices" in words
        ],
    )


ROWS = Arrays(lambda: floats(V, WIDTH))


EDGE_ROWS = Arrays(lambda: floats(num_edges()), optional=True)


UNITS = Arrays(lambda: targets()[:8], bound=V, distinct=True, any_length=True)


TARGETS = Arrays(targets, bound=V, distinct=True, any_length=True)


SEED = whole(1, wrong=(3.5, "3", None, 2**70))


COUNT = whole(2, wrong=(0, -1, 3.5, "3", None))


class OnlyWrong(Kind):
    """Values that are valid, or invalid in one of the listed ways."""

    def draw_wrong(self, draw: random.Random) -> Drawn:
        words, make = draw.choice(self._wrong)
        return Drawn(make(), words, is_wrong=True)


def bad_blocks() -> list[tuple[str, Callable[[], Any]]]:
    return [
        ("None", lambda: None),
        ("none", list),
        ("3", lambda: [3, 3]),
        ("one", lambda: user_batch().blocks[:1]),
        ("swapped", lambda: user_batch().blocks[::-1]),
        ("columns", lambda: [user_block(columns=block().columns + 10**6), user_batch().blocks[1]]),
    ]


def number(right: float) -> Kind:
    wrong = [(repr(bad), lambda bad=bad: bad) for bad in (-1.0, "a", None, float("nan"))]
    return Kind(lambda: right, wrong=wrong)


def _in_folder(name: Any) -> Any:
    folder = tempfile.mkdtemp(prefix="hyrt-fuzz-")
    return Path(folder) / name if isinstance(name, str) and name and "\0" not in name else name


def quick_train(graph: Any, model: Any, **sections: Any) -> Any:
    settings = {"train": {"epochs": 1}, "data": {"batch_size": 8}, "sampler": {"fanout": [3, 2]}}
    return hyrt.train(graph, model, **settings | {"devices": ["cpu"], "runtime": {"threads": 1}} | sections)
