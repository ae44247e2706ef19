"""The registry of models, from synthetic entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from torch import nn

from hyrt.errors import ConfigError, PluginConflictError
from hyrt.nn.architecture import Architecture
from hyrt.nn.layers import GcnLayer
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import ModelKind, check_model, find_model


class Biased(ModelKind):
    """A GCN whose biases start at the value of an option."""

    def layer(
        self, architecture: Any, in_features: int, out_features: int, *, last: bool, bias: float = 0.0
    ) -> Any:
        layer = GcnLayer(in_features, out_features)
        layer.bias.data.fill_(bias)
        return layer


class Unfinished(ModelKind):
    pass


class Priceless(Biased):
    costs_like = "nonsense"


class Narrow(Biased):
    def layer(self, architecture: Any) -> Any:  # type: ignore[override]
        raise AssertionError


class Raising(Biased):
    def layer(self, *_: Any, last: bool, **__: Any) -> Any:
        raise RuntimeError("no\n  layer")


class Foreign(Biased):
    def layer(self, architecture: Any, in_features: int, out_features: int, *, last: bool, **__: Any) -> Any:
        return nn.Linear(in_features, out_features)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "unit.nn.test_models"
    entries = [
        EntryPoint("gcn", "hyrt.nn.models.gcn:Gcn", "hyrt.models"),
        EntryPoint("biased", f"{here}:Biased", "hyrt.models"),
        EntryPoint("unfinished", f"{here}:Unfinished", "hyrt.models"),
        EntryPoint("priceless", f"{here}:Priceless", "hyrt.models"),
        EntryPoint("raising", f"{here}:Raising", "hyrt.models"),
        EntryPoint("foreign", f"{here}:Foreign", "hyrt.models"),
        EntryPoint("narrow", f"{here}:Narrow", "hyrt.models"),
        EntryPoint("number", f"{here}:ENTRIES", "hyrt.models"),
        EntryPoint("twice", f"{here}:Biased", "hyrt.models"),
        EntryPoint("twice", f"{here}:Unfinished", "hyrt.models"),
    ]
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points", lambda group: [e for e in entries if e.group == group]
    )


ENTRIES = 5


@pytest.mark.usefixtures("declared")
def test_a_model_is_built_by_its_kind_with_its_options() -> None:
    a = Architecture(kind="biased", in_features=4, num_classes=3, hidden=6, layers=3, options={"bias": 0.5})
    model = GNN(a)
    assert [type(layer).__name__ for layer in model.layers] == ["GcnLayer"] * 3
    assert [tuple(p.shape) for p in model.parameters()] == [(6, 4), (6,), (6, 6), (6,), (3, 6), (3,)]
    assert all((layer.bias == 0.5).all() for layer in model.layers)  # type: ignore[union-attr]
    check_model("biased", {"bias": 1}, hidden=6, heads=4)
    with pytest.raises(ValueError, match=r"model.options=.*model.kind=biased \(.*'scale'"):
        check_model("biased", {"scale": 1}, hidden=6, heads=4)
    with pytest.raises(ValueError, match="'bias'"):
        check_model("gcn", {"bias": 1}, hidden=6, heads=4)
    says = (
        r"^the layer method of model.kind 'narrow' \(.*\) must take \(architecture, in_features, .*, last\): "
    )
    with pytest.raises(ConfigError, match=says):
        check_model("narrow", {}, hidden=6, heads=4)


def test_the_last_layer_of_gat_has_as_many_heads_as_it_is_given() -> None:
    sizes = {"kind": "gat", "in_features": 4, "num_classes": 3, "hidden": 6, "heads": 2}
    for options, heads in (({}, 2), ({"out_heads": 1}, 1), ({"out_heads": 5}, 5)):
        first, last = GNN(Architecture(**sizes, options=options)).layers  # type: ignore[arg-type]
        assert first.weight.shape == (2, 3, 4)  # type: ignore[union-attr]
        assert last.weight.shape == (heads, 3, 6)  # type: ignore[union-attr]
    for wrong in (0, -1, True, 1.5, "two"):
        with pytest.raises(ConfigError, match=r"^model.options has out_heads=.*: use a number of heads"):
            GNN(Architecture(**sizes, options={"out_heads": wrong}))  # type: ignore[arg-type]


@pytest.mark.usefixtures("declared")
def test_what_is_no_model_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown model.kind 'gnc' \(did you mean 'gcn'\?\)"):
        find_model("gnc")
    with pytest.raises(
        ConfigError,
        match=r"'number' must be a class derived from .*, but unit\.nn\.test_models:ENTRIES is not: update",
    ):
        find_model("number")
    with pytest.raises(PluginConflictError, match="twice"):
        find_model("twice")


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("unfinished", "its class Unfinished does not define layer: update or uninstall "),
        (
            "priceless",
            "has costs_like='nonsense': choose one of graphsage, gcn, gin, gat, or leave it empty$",
        ),
        ("raising", "layer 0 failed: RuntimeError: no layer$"),
        ("foreign", "layer returned Linear, which is not a subclass of hyrt.nn.layer.Layer$"),
    ],
)
def test_a_kind_that_breaks_its_word_is_named_in_one_line(kind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.kind '{kind}' \(unit.nn.test_models:\w+\):? {says}"):
        GNN(Architecture(kind=kind, in_features=4, num_classes=3, hidden=6, layers=2))


def test_settings_of_the_built_in_models_are_checked_without_torch() -> None:
    code = (
        "import sys; from hyrt.config import build_config\n"
        "for kind in ('graphsage', 'gcn', 'gin', 'gat'): build_config({'model': {'kind': kind}})\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
