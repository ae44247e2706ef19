"""Random configurations of `hyrt run` over all combinations of features."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from feature_graphs import EDGE_TYPES, HETERO, HETERO_FILES, NUM_CLASSES

T = TypeVar("T")

FAMILIES = ("mini-batches", "full graph", "tiles", "typed", "links")
"""Families of configurations."""
# Models with linear maps after the aggregation, which all kernel devices support.
_SUMS = ("gcn", "graphsage", "gin")
_MODELS = (*_SUMS, "gat", "commnet", "ggcn", "ggnn", "deepgcn", "gnn-film", *["user-layers"] * 4)
_FORMS = ("G-GCN", "gated mean", "GCN", "GraphSAGE", "GIN", "GAT", "GATv2", "EdgeConv", "perceptron", "mixed")
_SAMPLERS = ("neighbor", "labor", "fastgcn", "ladies", "saint", "shadow", "cluster")
_HIDDEN = (9, 12, 16, 37)
# Thread counts of the two runs. The first choices of both differ, so the runs differ even in the simplest
# configuration.
_COUNTS = ((1, 2, 3, 0), (3, 2, 1, 0))
_STAGES = ("propagate", "sample", "load", "transfer", "update")


@dataclass(frozen=True)
class DrawnConfiguration:
    """A run, and variations of it that must not change a bit.

    Parameters
    ----------
    family
        One of `FAMILIES`.
    settings
        Arguments of `hyrt run`, without `threads`.
    threads, other_threads
        Two sets of settings for thread counts and the pipeline.
    stop_at
        Interruption point, as a fraction of all points at which the run can stop.
    fail_stage, fail_at
        Stage in which a fault ends the run, and its step as a fraction of all steps.
    kinds
        Features of the configuration, for statistics.
    """

    family: str
    settings: tuple[str, ...]
    threads: tuple[str, ...]
    other_threads: tuple[str, ...]
    stop_at: float
    fail_stage: str
    fail_at: float
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"hyrt run {' '.join(map(_quote, (*self.settings, *self.threads)))}"


def _quote(word: str) -> str:
    return f"'{word}'" if set(word) & set(" {}[]") else word


def draw_configuration(draw: random.Random, family: str) -> DrawnConfiguration:
    """Generate a random configuration of a family.

    The first option of every choice is the simplest, so that hypothesis, which may provide `draw`, can shrink
    a failing configuration.
    """
    options = _Options(draw)
    {
        "mini-batches": _draw_mini_batches,
        "full graph": _draw_full_graph,
        "tiles": _draw_tiles,
        "typed": _draw_hetero,
        "links": _draw_links,
    }[family](options)
    _draw_training(options, family)
    overlaps = options.settings.get("sampler.kind") != "full"
    threads, others = (_draw_threads(draw, counts, overlaps=overlaps) for counts in _COUNTS)
    return DrawnConfiguration(
        family=family,
        settings=tuple(f"{name}={value}" for name, value in options.settings.items()),
        threads=threads,
        other_threads=others,
        stop_at=_draw_fraction(draw),
        fail_stage=draw.choice(_STAGES),
        fail_at=_draw_fraction(draw),
        kinds=(family, *options.kinds),
    )


@dataclass
class _Options:
    """Settings chosen so far, and the features that they count as."""

    draw: random.Random
    settings: dict[str, Any] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def set(self, **values: Any) -> None:
        """Set settings; two underscores stand for a dot."""
        self.settings |= {name.replace("__", "."): value for name, value in values.items()}

    def choose(self, name: str, options: Sequence[T]) -> T:
        """Choose the value of a setting at random."""
        value = self.draw.choice(options)
        self.settings[name] = value
        return value

    def sometimes(self, name: str, options: Sequence[Any], one_in: int = 3) -> None:
        """Choose the value of a setting in one of `one_in` configurations."""
        if self.draw.randrange(one_in) == one_in - 1:
            self.choose(name, options)

    def count(self, kind: str, value: object) -> None:
        self.kinds.append(f"{kind} {value}")


def _draw_mini_batches(options: _Options) -> None:
    devices = _draw_devices(options, ("cpu:0", "cpu:0,cpu:1", "opencl:0", "cpu:0,opencl:0"))
    data = _draw_data(options)
    kind = _draw_model(options, data, has_kernels="opencl" in devices)
    by_data = {
        "weights.npz": (*_SAMPLERS, "weighted", "weighted", "weighted"),
        "edge-types.npz": ("neighbor", "labor"),
    }
    samplers = by_data.get(data, _SAMPLERS)
    sampler = options.choose("sampler.kind", samplers)
    options.count("sampler", sampler)
    batch = options.choose("data.batch_size", (257, 100, 61))
    unit = _draw_sampler(options, sampler, batch)
    if sampler == "labor" and data != "edge-types.npz":
        options.sometimes("sampler.iterations", (1, 2), 2)
    if sampler == "neighbor" and kind in _SUMS and data != "weights.npz":
        options.sometimes("sampler.degrees", ("sampled",), 5)
    if "," in devices:
        first = options.draw.randrange(1, unit)
        options.set(split=f"[{first},{unit - first}]")
    options.sometimes("runtime.fuse_load", ("false",))
    options.sometimes("data.feature_dtype", ("float16", "bfloat16", "int8", "int8-columns"))
    if "data.feature_dtype" in options.settings:
        options.sometimes("data.rounding", ("stochastic",), 2)
    if "opencl" in devices:
        options.sometimes("data.cache", ("20%",))
        if sampler == "neighbor":
            options.sometimes("sampler.on_device", ("true",), 2)
    options.set(train__epochs=2)


def _draw_full_graph(options: _Options) -> None:
    devices = _draw_devices(options, ("cpu:0", "cpu:0", "cpu:0", "opencl:0"))
    options.set(sampler__kind="full", train__epochs=options.draw.choice((4, 7)))
    options.count("sampler", "full")
    _draw_model(options, _draw_data(options), has_kernels="opencl" in devices)
    options.sometimes("fullgraph.host_memory", ("1MiB",))


def _draw_tiles(options: _Options) -> None:
    devices = ("cpu:0", "cpu:0", "cpu:0=1,cpu:1=2", "opencl:0", "cpu:0=1,opencl:0=2")
    chosen = _draw_devices(options, devices)
    options.set(sampler__kind="full", train__epochs=options.draw.choice((3, 5)))
    _draw_model(options, _draw_data(options, weighted=False), has_kernels="opencl" in chosen)
    if options.draw.randrange(4) == 3:
        options.choose("fullgraph.device_memory", ("2MiB", "1MiB"))
    else:
        options.choose("fullgraph.chunks", (3, 2, 5, 8, 31))
    options.sometimes("fullgraph.order", ("row-column",))
    options.sometimes("fullgraph.in_flight", (1, 3))
    options.sometimes("fullgraph.filter_below", (0, 0.5, 1))
    options.sometimes("fullgraph.host_memory", ("1MiB",))


def _draw_hetero(options: _Options) -> None:
    _draw_devices(options, ("cpu:0", "cpu:0", "cpu:0,cpu:1"))
    data = options.choose("data.source", (f"synthetic:hetero,{HETERO}", *HETERO_FILES))
    options.count("data", "typed" if data.startswith("synthetic") else data)
    by_data = {HETERO_FILES[0]: ("rgcn", "rsage", "rgat"), HETERO_FILES[1]: ("rgat",)}
    kind = options.choose(
        "model.kind", by_data.get(data, ("rgcn", "rsage", "rgat", "hgt", "ggnn", "gnn-film"))
    )
    options.count("model", kind)
    if kind == "rgcn":
        options.sometimes("model.options", ("{bases: 2}", "{blocks: 3}"), 2)
    _draw_shape(options, kind, kind in ("rgat", "hgt"))
    if options.settings.get("model.options") == "{blocks: 3}":
        options.choose("model.hidden", (9, 12))
    if options.settings["devices"] == "[cpu:0]" and options.draw.randrange(2):
        options.set(sampler__kind="full", train__epochs=4)
        options.count("sampler", "full")
    else:
        batch = options.choose("data.batch_size", (41, 100))
        _draw_fanouts(options)
        options.count("sampler", "neighbor")
        options.sometimes("sampler.relation_fanout", ("{cites: 3, writes: 2}",))
        if "," in options.settings["devices"]:
            options.set(split=f"[{batch // 3},{batch - batch // 3}]")
        options.set(train__epochs=2)


def _draw_links(options: _Options) -> None:
    devices = _draw_devices(options, ("cpu:0", "cpu:0", "cpu:0,cpu:1"))
    is_hetero = options.draw.randrange(4) == 3
    options.set(train__objective="links")
    if is_hetero:
        options.set(data__source=f"synthetic:hetero,{HETERO}", links__relation="writes")
        options.count("data", "typed")
        kind = options.choose("model.kind", ("rgcn", "rsage", "rgat", "hgt"))
        options.count("model", kind)
        _draw_shape(options, kind, kind in ("rgat", "hgt"))
    else:
        _draw_model(options, _draw_data(options, labelled=False), has_kernels=False)
    options.sometimes("links.decoder", ("distmult", "transe", "mlp"), 2)
    options.sometimes("links.negatives", ("degree", "batch"), 2)
    options.sometimes("links.num_negatives", (3,))
    options.sometimes("links.loss", ("ranking",))
    options.sometimes("links.supervision", (0.3,))
    options.sometimes("links.width", (7,))
    options.set(links__candidates=20)
    if "," not in devices and options.draw.randrange(3) == 2:
        options.set(sampler__kind="full", train__epochs=3)
        options.count("sampler", "full")
    else:
        options.count("sampler", "neighbor")
        _draw_fanouts(options)
        options.sometimes("links.exclude", ("edges", "none"))
        options.set(data__batch_size=501, train__epochs=1)
        if "," in devices:
            options.set(split="[200,301]")


def _draw_devices(options: _Options, choices: Sequence[str]) -> str:
    devices = options.draw.choice(choices)
    options.settings["devices"] = f"[{devices}]"
    options.count("devices", "+".join(device.partition("=")[0] for device in devices.split(",")))
    return devices


def _draw_data(options: _Options, *, weighted: bool = True, labelled: bool = True) -> str:
    """Choose a homogeneous graph; return its kind or file."""
    files = ["generated", "generated", "sparse.npz", "directed.npz", "edge-features.npz", "edge-types.npz"]
    files += ["weights.npz"] * 2 * weighted + ["labels.npz", "numbers.npz"] * labelled
    data = options.draw.choice(files)
    options.count("data", data)
    if data == "generated":
        vertices = options.draw.choice((2001, 601, 601, 37, 37, 12007))
        words = [f"vertices={vertices}", f"features={options.draw.choice((7, 1, 16, 37, 101))}"]
        words += [f"classes={NUM_CLASSES}"]
        if options.draw.randrange(4) == 3:
            words.append("dtype=float16")
        data = f"synthetic:tiny,{','.join(words)}"
    options.set(data__source=data)
    options.sometimes("data.normalize", ("standard", "length"), 4)
    return data


def _draw_model(options: _Options, data: str, *, has_kernels: bool) -> str:
    """Choose a model that supports the data."""
    by_data = {
        "edge-features.npz": ("gine", "edge-gat"),
        "edge-types.npz": ("ggnn", "gnn-film"),
        "weights.npz": _SUMS,
    }
    kinds = by_data.get(data, _MODELS)
    is_simple = has_kernels and options.draw.randrange(4) < 3
    kind = options.choose(
        "model.kind",
        [model_kind for model_kind in kinds if model_kind in _SUMS] or kinds if is_simple else kinds,
    )
    options.count("model", kind)
    if data == "edge-types.npz":
        options.set(model__options=f"{{edge_types: {EDGE_TYPES}}}")
    if kind == "user-layers":
        form = options.draw.choice(_FORMS)
        options.set(model__options=f"{{form: {form}}}")
    _draw_shape(options, kind, kind in ("gat", "edge-gat"))
    if kind == "graphsage":
        aggregates = ("mean", "sum") if data == "weights.npz" or is_simple else ("mean", "sum", "max")
        options.choose("model.aggregate", aggregates)
    if kind == "gat":
        options.choose("model.attention_dropout", (0, 0.3))
    if is_simple:
        options.set(model__norm="none", model__residual="false")
    return kind


def _draw_shape(options: _Options, kind: str, has_heads: bool) -> None:
    options.choose("model.layers", (2, 1, 3))
    if kind == "user-layers":
        # The number of attention heads must divide the width.
        options.choose("model.hidden", (12, 16))
    else:
        hidden = options.choose("model.hidden", _HIDDEN)
        if has_heads:
            options.choose("model.heads", [heads for heads in (1, 2, 3, 4) if hidden % heads == 0])
    options.choose("model.dropout", (0, 0.4))
    options.choose("model.input_dropout", (0, 0, 0.2))
    options.choose("model.norm", ("none", "layer"))
    options.choose("model.residual", ("false", "false", "true"))


def _draw_sampler(options: _Options, sampler: str, batch: int) -> int:
    """Choose the settings of a sampler; return the required sum of a split."""
    if sampler == "saint":
        options.set(sampler__roots=options.draw.choice((25, 100)), sampler__walk_length=2)
        return options.choose("sampler.units", (2, 3))
    if sampler == "cluster":
        options.set(sampler__parts=9, sampler__parts_per_group=options.draw.choice((1, 2)))
        options.choose("sampler.method", ("random", "block", "metis"))
        return options.choose("sampler.groups", (2, 3))
    if sampler in ("fastgcn", "ladies"):
        options.choose("sampler.layer_size", (64, 201))
    elif sampler == "shadow":
        options.set(sampler__hops=options.draw.choice((2, 1)), sampler__hop_neighbors=4)
    else:
        _draw_fanouts(options)
    if sampler == "weighted":
        options.sometimes("sampler.replacement", ("true",), 2)
    return batch


def _draw_fanouts(options: _Options) -> None:
    layers = options.settings["model.layers"]
    fanouts = [options.draw.choice((5, 10, 2, -1)) for _ in range(layers)]
    options.set(sampler__fanout=str(fanouts))


def _draw_training(options: _Options, family: str) -> None:
    optimizer = options.choose("train.optimizer", ("Adam", "SGD", "AdamW", "Adagrad"))
    options.set(train__lr=0.01 if optimizer != "SGD" else 0.001)
    options.choose("seed", (0, 1, 12345))
    # Without a norm, sums over all neighbours may diverge.
    options.set(train__clip_norm=1)
    options.sometimes("train.weight_decay", (0.0005,))
    options.sometimes("train.schedule", ("ReduceLROnPlateau",), 4)
    options.sometimes("train.warmup_steps", (3,), 4)
    options.sometimes("train.precision", ("bf16",), 4)
    data = options.settings["data.source"]
    if family != "links" and data not in ("labels.npz", "numbers.npz"):
        options.sometimes("train.class_weights", ("balanced",), 4)
        options.sometimes("train.label_smoothing", (0.1,), 4)
    options.choose("evaluate.every", (1, 2, 0))
    if options.settings.get("sampler.kind") != "full":
        options.sometimes("evaluate.mode", ("sampled",))
    options.sometimes("evaluate.memory_gib", (0.0001,), 4)
    if options.settings.get("train.precision") == "bf16":
        options.count("precision", "bf16")


def _draw_fraction(draw: random.Random) -> float:
    """Return a random fraction; the simplest one is 0.5, because at 0 nothing has been computed yet."""
    return (draw.random() + 0.5) % 1.0


def _draw_threads(draw: random.Random, counts: Sequence[int], *, overlaps: bool) -> tuple[str, ...]:
    """Choose thread counts (0: number of processors), and how steps overlap."""
    stages = [f"runtime.{stage}_threads={draw.choice(counts)}" for stage in ("train", "sample", "load")]
    if not overlaps:
        return tuple(stages)
    pipelined = draw.choice(("true", "true", "false"))
    return (
        *stages,
        f"runtime.pipelined={pipelined}",
        f"runtime.max_in_flight_steps={draw.choice((4, 1, 2, 3))}",
    )
