"""Fuzzed calls of samplers, and runs with invalid user-defined samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from fuzz_objects import (
    ALONE,
    CLASSES,
    COUNT,
    LAYERS,
    SEED,
    TARGETS,
    UNITS,
    Call,
    OnlyWrong,
    V,
    broken_graphs,
    floats,
    num_edges,
    quick_train,
    small_graph,
    targets,
)
from fuzz_values import Arrays, Kind, flag, whole

from hyrt.graph.graph import Graph
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.sampler import Hop
from hyrt.sampling.sampler_settings import SAMPLERS


def sampler_calls() -> list[Call]:
    options: dict[str, dict[str, Any]] = {
        "neighbor": {"fanout": [3, 2]},
        "labor": {"fanout": [3, 2]},
        "fastgcn": {"layer_size": 16},
        "ladies": {"layer_size": 16},
        "weighted": {"fanout": [3, 2]},
        "saint": {"roots": 4, "walk_length": 2, "units": 2},
        "shadow": {"hops": 2, "hop_neighbors": 3},
        "cluster": {"parts": 6, "parts_per_group": 2, "groups": 2, "method": "random"},
        "full": {},
    }
    calls = []
    for kind, fixed_options in options.items():
        settings = SAMPLERS.load(kind)(kind=kind, **fixed_options)

        def graph_of(kind: str = kind) -> Graph:
            graph = small_graph()
            if kind != "weighted":
                return graph
            return replace(graph, topology=replace(graph.topology, edge_weights=floats(num_edges()) ** 2 + 1))

        def build(settings: Any = settings, **arguments: Any) -> Any:
            sampler = settings.build(**{"layers": LAYERS, "batch_size": 8, **arguments})
            return sampler.sample(0, sampler.units(0), ALONE, in_place=False)

        broken = [] if kind == "weighted" else broken_graphs()[:11]
        calls.append(
            Call(
                f"samplers.{kind}.build",
                build,
                {
                    "graph": Kind(graph_of, wrong=[*broken, ("3", lambda: 3), ("None", lambda: None)]),
                    "targets": TARGETS,
                    **({"batch_size": COUNT} if kind not in ("saint", "cluster", "full") else {}),
                    "seed": SEED,
                    "class_weights": Arrays(lambda: floats(CLASSES), optional=True),
                },
            )
        )

        def sample(settings: Any = settings, graph_of: Any = graph_of, **arguments: Any) -> Any:
            sampler = settings.build(graph_of(), targets(), layers=LAYERS, batch_size=8, seed=1)
            if "units" not in arguments:
                arguments["units"] = sampler.units(arguments["step"])
            return sampler.sample(**{"workers": ALONE, **arguments})

        units = {"units": UNITS} if kind not in ("saint", "cluster", "full", "ladies") else {}
        calls.append(
            Call(
                f"samplers.{kind}.sample",
                sample,
                {
                    "step": whole(3, wrong=(3.5, "3", None)),
                    **units,
                    "in_place": flag(optional=False),
                }
                | ({"workers": Kind(lambda: ALONE, wrong=[("3", lambda: 3)])} if kind != "full" else {}),
                weight=2,
            )
        )
    units = Arrays(lambda: np.array([0, 1]), any_length=True, distinct=True)
    for kind in ("saint", "cluster"):
        settings = SAMPLERS.load(kind)(kind=kind, **options[kind])

        def sample_units(units: Any, settings: Any = settings) -> Any:
            sampler = settings.build(small_graph(), targets(), layers=LAYERS, batch_size=8, seed=1)
            return sampler.sample(0, units, ALONE, in_place=False)

        calls.append(Call(f"samplers.{kind}.sample, units", sample_units, {"units": units}))
    return calls


class FuzzHops:
    """A user-defined neighbour sampler that returns the given fields."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def draw(self, vertices: Any, fanout: int, key: Any, *, relabel: bool) -> Any:
        num = len(vertices)
        fields = {
            "degrees": np.full(num, 2, np.int32),
            "offsets": np.arange(0, 2 * num + 1, 2, dtype=np.int32),
            "neighbors": np.resize(np.arange(10), 2 * num).astype(vertices.dtype),
        }
        made = {name: bad(fields.get(name)) if callable(bad) else bad for name, bad in self._fields.items()}
        return Hop(**fields | made)

    def close(self) -> None:
        """No-op."""


class FuzzSampler:
    """A user-defined sampler that wraps a hyrt sampler and changes its mini-batches."""

    def __init__(self, inner: Any, change: Callable[[Any, int], Any], method: str) -> None:
        self._inner, self._change, self._method = inner, change, method

    def steps_per_epoch(self) -> Any:
        return self._inner.steps_per_epoch()

    def units(self, step: int) -> Any:
        units = self._inner.units(step)
        return self._change(units, step) if self._method == "units" else units

    def sample(self, step: int, units: Any, workers: Any, *, in_place: bool, hops: Any = None) -> Any:
        batch = self._inner.sample(step, units, workers, in_place=in_place, hops=hops)
        return self._change(batch, step) if self._method == "batch" else batch


def _set(array: Any, bad: Any) -> Any:
    changed = array.copy()
    changed[len(changed) // 2] = bad
    return changed


def unit_changes() -> list[tuple[str, Any]]:
    return [
        ("repeated", lambda u, s: np.resize(u[:2], len(u))),
        ("-5", lambda u, s: _set(u, -5)),
        ("V", lambda u, s: _set(u, V)),
        ("floats", lambda u, s: u.astype(np.float32)),
        ("None", lambda u, s: None),
        ("rows", lambda u, s: u[:, None]),
        ("too many", lambda u, s: np.arange(V)),
        ("a text", lambda u, s: "abc"),
        ("list", lambda u, s: u.tolist()),
    ]


def batch_changes() -> list[tuple[str, Any]]:
    def changed(name: str, bad: Any) -> Any:
        def change(batch: Any, step: int) -> Any:
            setattr(batch, name, bad(getattr(batch, name)))
            return batch

        return change

    def in_block(name: str, bad: Any) -> Any:
        def change(batch: Any, step: int) -> Any:
            setattr(batch.blocks[-1], name, bad(getattr(batch.blocks[-1], name)))
            return batch

        return change

    return [
        ("columns -1", in_block("columns", lambda a: _set(a, -1))),
        ("columns 10**6", in_block("columns", lambda a: _set(a, 10**6))),
        ("columns cut", in_block("columns", lambda a: a[:-1])),
        ("indptr falls", in_block("indptr", lambda a: a[::-1].copy())),
        ("indptr longer", in_block("indptr", lambda a: np.append(a, a[-1]))),
        ("num_src", in_block("num_src", lambda a: a + 10**6)),
        ("sources", in_block("sources", lambda a: a[:-1])),
        ("degrees", in_block("degrees", lambda a: a[:1])),
        ("edge_weights", in_block("edge_weights", lambda a: np.ones(1, np.float32))),
        ("labels out of range", changed("labels", lambda a: a + 100)),
        ("labels below 0", changed("labels", lambda a: a - 100)),
        ("labels longer", changed("labels", lambda a: np.append(a, a))),
        ("labels None", changed("labels", lambda a: None)),
        ("targets cut", changed("targets", lambda a: a[:-1])),
        ("no blocks", changed("blocks", lambda a: [])),
        ("one block", changed("blocks", lambda a: a[:1])),
        ("normalizer", changed("normalizer", lambda a: "a")),
        ("target_rows", changed("target_rows", lambda a: np.array([10**6]))),
        ("target_weights", changed("target_weights", lambda a: np.ones(1, np.float32))),
        ("None", lambda batch, step: None),
    ]


def plug_in_calls() -> list[Call]:
    from hyrt.sampling.settings.neighbor_settings import NeighborSettings

    def train(method: str, change: Any) -> None:
        build = NeighborSettings.build

        def foreign(self: Any, graph: Any, targets: Any, **arguments: Any) -> Any:
            return FuzzSampler(build(self, graph, targets, **arguments), change, method)

        NeighborSettings.build = foreign
        try:
            quick_train(small_graph(), "gcn")
        finally:
            NeighborSettings.build = build

    def kind_of(changes: list[tuple[str, Any]], fine: tuple[str, ...] = ()) -> Kind:
        same = lambda value, step: value  # noqa: E731
        wrong = [(words, lambda change=change: change) for words, change in changes if words not in fine]
        return OnlyWrong(lambda: same, wrong=wrong)

    def draw_hops(fields: Any, in_place: bool) -> Any:
        sampler = NeighborSampler(small_graph(), targets(), [2, 2], 8, 1)
        return sampler.sample(0, sampler.units(0), ALONE, in_place=in_place, hops=FuzzHops(**fields))

    bad_hops = [
        ("neighbors -1", {"neighbors": lambda a: _set(a, -1)}),
        ("neighbors V", {"neighbors": lambda a: _set(a, V)}),
        ("neighbors floats", {"neighbors": lambda a: a.astype(np.float32)}),
        ("neighbors None", {"neighbors": None}),
        ("neighbors cut", {"neighbors": lambda a: a[:-1]}),
        ("offsets fall", {"offsets": lambda a: a[::-1].copy()}),
        ("offsets cut", {"offsets": lambda a: a[:-1]}),
        ("offsets int64", {"offsets": lambda a: a.astype(np.int64)}),
        ("degrees cut", {"degrees": lambda a: a[:-1]}),
        ("weights cut", {"weights": np.ones(1, np.float32)}),
    ]
    return [
        Call(
            "users' sampler, units",
            lambda change: train("units", change),
            {"change": kind_of(unit_changes())},
            0.3,
        ),
        Call(
            "users' sampler, batch",
            lambda change: train("batch", change),
            {"change": kind_of(batch_changes())},
            0.5,
        ),
        Call(
            "users' hop sampler",
            draw_hops,
            {
                "fields": OnlyWrong(dict, wrong=[(words, lambda f=f: f) for words, f in bad_hops]),
                "in_place": flag(optional=False),
            },
            2,
        ),
    ]
