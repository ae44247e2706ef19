"""What a kind of model is: its layers, its checks and its costs. Needs no torch."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hyrt_perfmodel.workloads.model_workload import KINDS

from hyrt.errors import ConfigError, listed
from hyrt.machine.entry_points import EntryPointGroup

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer

MODELS = EntryPointGroup("hyrt.models", "model.kind")
EDGE_FEATURES = "edge_features"
"""The option of kinds that are made for so many features of edges."""
EDGE_TYPES = "edge_types"
"""The option of kinds that tell so many types of edges apart."""


class ModelKind(ABC):
    """A kind of model: a `hyrt.nn.model.GNN` of the kind's own layers.

    Its class is declared in the entry-point group `hyrt.models` under the name that `model.kind` gives.
    Importing it should be quick, since every command that reads settings does it: what needs torch is
    imported in `layer`.
    """

    best_form: ClassVar[Literal["rows", "aggregated", "in_place"]] = "in_place"
    """The form of input that costs its first layer least, where a trainer takes it; see
    `hyrt.pipeline.trainer.InputPlan`."""
    costs_like: ClassVar[str] = ""
    """The model of `hyrt_perfmodel.workloads.model_workload` that has its costs; empty if there is none,
    and then it has costs of its own."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings by their names, such as `train.lr`, that a run of this kind has where the user gives none."""
    reads: ClassVar[Collection[str] | None] = None
    """Which of `aggregate`, `heads`, `attention_dropout`, `hidden` and `norm` of the architecture `layer`
    reads: a run warns of those that the user gives and nothing reads. None says nothing: no run warns."""
    adds_rows_last: ClassVar[bool] = False
    """Whether `model.residual` adds a layer's input after its norm and its ReLU, and to no first layer (Li et
    al., ICCV 2019, equation 4), rather than before both."""
    typed: ClassVar[bool] = False
    """Whether it is made for typed graphs, and for no others: `architecture.shape` has the relations."""
    assumption: ClassVar[str] = ""
    """What a prediction assumes of its costs, in a sentence; empty for nothing."""

    @abstractmethod
    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        """A layer of the model.

        A kind may add keyword arguments with defaults: they are its own settings, given by `model.options`.

        Parameters
        ----------
        architecture
            What the whole model is built from.
        in_features, out_features
            Widths of the layer's source rows and of its result.
        last
            Whether its result is the scores.
        """

    def products(self, options: Mapping[str, Any]) -> tuple[float, float] | None:
        """Products of a row with a layer's weights: of each source, and of each destination.

        None for those of `costs_like`, whose rates and other costs hold in any case.

        Parameters
        ----------
        options
            The kind's own settings, as `layer` takes them.
        """
        return None

    def check(self, *, hidden: int, heads: int) -> None:  # noqa: B027
        """Check that the settings of the model go together.

        Raises
        ------
        ValueError
            Naming the settings that do not.
        """


def find_model(name: str) -> ModelKind:
    """The kind of model that is declared under a name.

    Raises
    ------
    ConfigError, PluginConflict
        As `EntryPointGroup.load_class`, and if it has the costs of a model that there is not.
    """
    kind = MODELS.load_class(name, ModelKind)  # type: ignore[type-abstract]
    if kind.costs_like not in ("", *KINDS):
        raise ConfigError(
            f"{MODELS.named(name)}: costs_like is {kind.costs_like!r}: give one of {', '.join(KINDS)}, or "
            "leave it empty"
        )
    with MODELS.blamed(name, "making it"):
        return kind()


def check_model(name: str, options: Mapping[str, Any], *, hidden: int, heads: int) -> None:
    """Check the settings of a model.

    Raises
    ------
    ConfigError, PluginConflict
        As `find_model`.
    ValueError
        If the settings do not go together, or the kind does not know its options.
    """
    kind = find_model(name)
    with MODELS.blamed(name, "check", passing=(ValueError,)):
        kind.check(hidden=hidden, heads=heads)
    signature = inspect.signature(kind.layer)
    try:
        signature.bind_partial(None, 1, 1, last=True)
    except TypeError as error:
        raise ConfigError(
            f"{MODELS.named(name)}: its layer must take (architecture, in_features, out_features, *, last): "
            f"{error}"
        ) from None
    try:
        signature.bind(None, 1, 1, last=True, **options)
    except TypeError as error:
        own = [each for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY]
        taken = [each.name for each in own if each.name != "last"]
        takes = f"it takes {listed(taken)}" if taken else "it takes none: omit them"
        raise ValueError(
            f"model.options={dict(options)} does not go with model.kind={name}: {error}: {takes}"
        ) from None


def takes_edge_features(kind: str) -> bool:
    """Whether a kind of model has the option `edge_features`."""
    return EDGE_FEATURES in inspect.signature(find_model(kind).layer).parameters


def takes_edge_types(kind: str) -> bool:
    """Whether a kind of model has the option `edge_types`."""
    return EDGE_TYPES in inspect.signature(find_model(kind).layer).parameters


def checked_width(kind: str, width: int) -> int:
    """The width, if it is one.

    Raises
    ------
    ConfigError
        If it is none, naming what to do.
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ConfigError(
            f"model.kind={kind} looks at features of edges, and the data has none: give it the key "
            f"edge_features (or edge_weight), or choose model.kind={'gin' if kind == 'gine' else 'gat'}"
        )
    return width
