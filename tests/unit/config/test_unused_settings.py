"""What a run does not read of its settings, told by its kind of model and the number of processes."""

from __future__ import annotations

from typing import Any

from hyrt.config import build_config
from hyrt.config.load import find_settings_without_effect, find_unused_settings
from hyrt.nn.architecture import Architecture, GraphMetadata
from hyrt.nn.models.model_kind import MODELS, find_model, supports_edge_features


class _Watched:
    """An architecture that notes which of its fields are read."""

    def __init__(self, kind: str) -> None:
        self.seen: set[str] = set()
        shape = GraphMetadata(("a",), (3,), (4,), ((0, "r", 0),)) if find_model(kind).hetero else None
        self._all = Architecture(kind=kind, in_features=4, num_classes=4, hidden=8, shape=shape)

    def __getattr__(self, name: str) -> Any:
        self.seen.add(name)
        return getattr(self._all, name)


def test_kinds_say_what_their_layers_read() -> None:
    asked = {"aggregate", "heads", "attention_dropout", "hidden", "norm", "dropout", "residual"}
    kinds = [
        name
        for name in MODELS.entries_by_name()
        if type(find_model(name)).__module__.startswith("hyrt.nn.models.")
    ]
    assert len(kinds) >= 11
    for name in kinds:
        watched = _Watched(name)
        options = {"edge_features": 2} if supports_edge_features(name) else {}
        for last in (False, True):
            find_model(name).layer(watched, 4, 8, last=last, **options)  # type: ignore[arg-type]
        assert set(find_model(name).reads or ()) == watched.seen & asked, name


def test_what_is_given_and_not_read_is_told() -> None:
    def said(num_processes: int = 2, own_model: bool = False, **settings: Any) -> list[str]:
        return find_unused_settings(build_config(settings), num_processes, custom_model=own_model)

    shared = {"kind": "graphsage", "heads": 8, "attention_dropout": 0.3, "aggregate": "sum", "dropout": 0.1}
    assert said(model=shared) == [
        "model.heads=8 has no effect on graphsage: only edge-gat, gat, hgt and rgat use it",
        "model.attention_dropout=0.3 has no effect on graphsage: only gat uses it",
    ]
    assert said(model={**shared, "kind": "gat"}) == [
        "model.aggregate=sum has no effect on gat: only graphsage uses it"
    ]
    assert said(model=shared, own_model=True) == []
    one = {"layers": 1, "hidden": 64, "norm": "layer"}
    assert said(model={**one, "kind": "gcn"}) == [
        "model.hidden=64 has no effect with model.layers=1, because there is no hidden layer: "
        "remove model.hidden",
        "model.norm=layer has no effect with model.layers=1, because there is no hidden layer: "
        "remove model.norm",
    ]
    assert said(model={**one, "kind": "gin"}) == []
    # The defaults of a kind are not the user's.
    for kind in MODELS.entries_by_name():
        assert said(1, model={"kind": kind}) == []
    assert said(1, distributed={"cache": "20%"}) == [
        "distributed.cache=0.2 has no effect in a single process: start several with torchrun, or remove it"
    ]
    assert said(1, distributed={"comm_dtype": "float16", "timeout_s": 5}) == [
        "distributed.comm_dtype=float16 and distributed.timeout_s=5.0 have no effect in "
        "a single process: start several with torchrun, or remove them"
    ]
    assert said(2, distributed={"cache": "20%"}) == []


def test_settings_of_training_that_have_no_effect() -> None:
    def said(**settings: Any) -> list[str]:
        known = {"has_folder": True, "rounds_products": True, "evaluates_by_layers": True}
        facts = {name: settings.pop(name, value) for name, value in known.items()}
        return find_settings_without_effect(build_config(settings), **facts)

    everything: dict[str, Any] = {
        "checkpoint": {"every_steps": 2, "keep": 5},
        "train": {"precision": "bf16", "patience": 3},
        "evaluate": {"memory_gib": 0.5},
        "runtime": {"trace": True, "trace_events": 5},
    }
    nothing = {"has_folder": False, "rounds_products": False, "evaluates_by_layers": False}
    assert said(**everything) == said(**nothing) == []
    assert said(**everything, **nothing) == [
        "checkpoint.every_steps=2 and checkpoint.keep=5 have no effect without a folder for checkpoints: "
        'call hyrt.train(..., folder="runs/name"), or remove them',
        "train.precision=bf16 has no effect on this model, which always computes its products in "
        "float32: remove train.precision",
        "evaluate.memory_gib=0.5 has no effect, because this run does not evaluate layer by layer "
        "(evaluate.mode=sampled, or a custom module): remove it",
    ]
    assert said(train={"patience": 3}, evaluate={"every": 0}) == [
        "train.patience=3 has no effect with evaluate.every=0, which evaluates only at the end: set "
        "evaluate.every=1, or remove train.patience"
    ]
    assert said(runtime={"trace_events": 5}) == [
        "runtime.trace_events=5 has no effect without runtime.trace=true: set runtime.trace=true, "
        "or remove runtime.trace_events"
    ]
