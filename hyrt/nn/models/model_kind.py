"""Interface of a model kind: its layers, checks and costs. This module does not import torch."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hyrt_perfmodel.model_workload import KINDS

from hyrt.errors import ConfigError, join_names
from hyrt.runtime.entry_points import EntryPointGroup

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer

MODELS = EntryPointGroup("hyrt.models", "model.kind")
EDGE_FEATURES = "edge_features"
"""Option of model kinds whose layers need the width of the edge features."""
EDGE_TYPES = "edge_types"
"""Option of model kinds whose layers need the number of edge types."""


class ModelKind(ABC):
    """Kind of a model: a `hyrt.nn.model.GNN` with the layers of this kind.

    Its class is declared in the entry-point group `hyrt.models` under the name that `model.kind` selects.
    Every command that reads settings imports the class, so import torch inside `layer`.
    """

    best_form: ClassVar[Literal["rows", "aggregated", "in_place"]] = "in_place"
    """Cheapest input form of the first layer among those that a trainer supports; see
    `hyrt.pipeline.trainer.InputPlan`.
    """
    costs_like: ClassVar[str] = ""
    """Model of `hyrt_perfmodel.model_workload` with equal costs; empty if the kind defines its own costs."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Default settings of runs with this kind, by names such as `train.lr`, which users can override."""
    reads: ClassVar[Collection[str] | None] = None
    """Settings that `layer` reads, out of `aggregate`, `heads`, `attention_dropout`, `hidden` and `norm`. A
    run warns if the user sets any of the others. None disables the warnings.
    """
    adds_rows_last: ClassVar[bool] = False
    """Whether `model.residual` adds the input of a layer after the norm and the ReLU (Li et al., ICCV 2019,
    equation 4; not in the first layer) instead of before them.
    """
    hetero: ClassVar[bool] = False
    """Whether the kind requires a heterogeneous graph, whose relations are in `architecture.shape`."""
    assumption: ClassVar[str] = ""
    """Sentence about the assumption in predictions of the kind's costs; empty if there is none."""

    @abstractmethod
    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        """Create a layer of the model.

        A kind may add keyword arguments with defaults. These are its options, which `model.options` sets.

        Parameters
        ----------
        architecture
            Architecture of the whole model.
        in_features, out_features
            Widths of the layer's source rows and of its result.
        last
            Whether the result is the scores.
        """

    def products(self, options: Mapping[str, Any]) -> tuple[float, float] | None:
        """Count the products of a row with the weights of a layer, per source and per destination.

        None selects the products of `costs_like`, whose rates and other costs apply in any case. `options`
        are the options of the kind, as for `layer`.
        """
        return None

    def check(self, *, hidden: int, heads: int) -> None:  # noqa: B027
        """Check that the settings of the model are consistent.

        Raises ValueError with the names of inconsistent settings.
        """


def find_model(name: str) -> ModelKind:
    """Return the model kind that is declared under a name.

    Raises ConfigError or PluginConflictError if the kind cannot be loaded, or `costs_like` is unknown.
    """
    kind = MODELS.load_class(name, ModelKind)  # type: ignore[type-abstract]
    if kind.costs_like not in ("", *KINDS):
        raise ConfigError(
            f"{MODELS.describe(name)} has costs_like={kind.costs_like!r}: choose one of {', '.join(KINDS)}, "
            "or leave it empty"
        )
    with MODELS.wrap_errors(name, "creation"):
        return kind()


def check_model(name: str, options: Mapping[str, Any], *, hidden: int, heads: int) -> None:
    """Check the settings of a model.

    Raises ValueError if the settings are inconsistent, or if the kind does not have an option.
    """
    kind = find_model(name)
    with MODELS.wrap_errors(name, "check", passing=(ValueError,)):
        kind.check(hidden=hidden, heads=heads)
    signature = inspect.signature(kind.layer)
    try:
        signature.bind_partial(None, 1, 1, last=True)
    except TypeError as error:
        raise ConfigError(
            f"the layer method of {MODELS.describe(name)} must take (architecture, in_features, "
            f"out_features, *, last): {error}"
        ) from None
    try:
        signature.bind(None, 1, 1, last=True, **options)
    except TypeError as error:
        parameters = signature.parameters.values()
        taken = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "last"]
        takes = f"use only {join_names(taken)}" if taken else "remove model.options"
        raise ValueError(
            f"model.options={dict(options)} is invalid for model.kind={name} ({error}): {takes}"
        ) from None


def supports_edge_features(kind: str) -> bool:
    """Return whether a model kind has the option `edge_features`."""
    return EDGE_FEATURES in inspect.signature(find_model(kind).layer).parameters


def supports_edge_types(kind: str) -> bool:
    """Return whether a model kind has the option `edge_types`."""
    return EDGE_TYPES in inspect.signature(find_model(kind).layer).parameters


def check_edge_width(kind: str, width: int) -> int:
    """Return the width of the edge features; raise ConfigError unless it is a positive integer."""
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ConfigError(
            f"model.kind={kind} needs edge features, but the data has none: add the key edge_features (or "
            f"edge_weight), or choose model.kind={'gin' if kind == 'gine' else 'gat'}"
        )
    return width
