"""The objectives that are declared in the entry-point group `hyrt.objectives`, by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hyrt_perfmodel.nearest_name import nearest_name

from hyrt.errors import ConfigError, listed
from hyrt.machine.entry_points import EntryPointGroup
from hyrt.objective.objective import Objective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hyrt.graph.labels.label_kind import LabelKind

OBJECTIVES = EntryPointGroup("hyrt.objectives", "objective")

BY_LABELS = "auto"
"""In place of a name: the objective that the labels of the dataset call for."""
OF_LABELS: dict[LabelKind, str] = {
    "classes": "classification",
    "flags": "multilabel",
    "numbers": "regression",
}
"""What `auto` stands for, by the kind of labels."""


def find_objective(name: str) -> type[Objective]:
    """The class behind a name; raises as `EntryPointGroup.load_class`."""
    # It imports numpy, which settings are read without.
    from hyrt.graph.labels.label_kind import SHAPES

    kind = OBJECTIVES.load_class(name, Objective)  # type: ignore[type-abstract]
    if getattr(kind, "name", None) != name:
        raise ConfigError(
            f"objective {name!r}: {OBJECTIVES.entry(name).value} must derive from Objective and set "
            f"name = {name!r}"
        )
    if not getattr(kind, "metrics", ()):
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: its metrics are empty: name at least one that evaluate returns"
        )
    if getattr(kind, "labels", None) not in (*SHAPES, "links"):
        raise ConfigError(f"{OBJECTIVES.named(name)}: its labels must be one of {listed(tuple(SHAPES))}")
    return kind


def build_objective(name: str, options: Mapping[str, Any], labels: NDArray[Any] | None = None) -> Objective:
    """An objective with its options.

    Parameters
    ----------
    name
        The declared name, or `auto` for the one that the labels call for.
    options
        Keyword arguments for it.
    labels
        Those of the dataset; None where there is none yet: then `auto` is `classification`.

    Raises
    ------
    ConfigError, PluginConflict
        As `find_objective`, if the objective refuses its options, or if it trains for labels of another kind.
    """
    from hyrt.graph.labels.label_kind import SHAPES, label_kind

    there = None if labels is None else label_kind(labels)
    name = OF_LABELS[there or "classes"] if name == BY_LABELS else name
    kind = find_objective(name)
    if labels is not None and there is not None and kind.labels != "links" and kind.labels != there:
        raise ConfigError(
            f"train.objective={name} trains for {SHAPES[kind.labels]}, but the labels are "
            f"{labels.dtype.name} {list(labels.shape)}, which hyrt reads as {SHAPES[there]}: omit "
            f"train.objective for {OF_LABELS[there]}, or write the labels in that form"
        )
    for option, text in (("class_weights", "class weights"), ("label_smoothing", "label smoothing")):
        if option in options and not _takes(kind, option):
            raise ConfigError(
                f"train.{option}={options[option]}: objective {name} does not support {text}: omit it"
            )
    try:
        with OBJECTIVES.blamed(name, "making it", passing=(TypeError, ValueError)):
            return kind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train.objective={name!r} refuses {dict(options)}: {error}") from error


def _takes(kind: type[Objective], option: str) -> bool:
    """Whether a keyword argument of a name may be given to a constructor."""
    known = inspect.signature(kind).parameters.values()
    return any(each.name == option or each.kind is each.VAR_KEYWORD for each in known)


def check_metric(name: str, metric: str) -> None:
    """Demand that an objective exists and has the metric that is to choose the best epoch, or `auto`.

    Of the objective `auto`, one of those that it may become must have it.

    Raises
    ------
    ConfigError, PluginConflict
        As `find_objective`, and with the nearest name if there is no such metric.
    """
    if name == BY_LABELS:
        kinds = [find_objective(each) for each in OF_LABELS.values() if each in OBJECTIVES.declared()]
        known = tuple(dict.fromkeys(metric for kind in kinds for metric in kind.metrics))
        name = "the objectives"
    else:
        known = find_objective(name).metrics
    if metric not in ("auto", *known):
        near = nearest_name(metric, known)
        hint = f" (did you mean {near!r}?)" if near else ""
        there = listed(("auto", *known))
        raise ConfigError(f"train.metric={metric!r}: the metrics of {name} are {there}{hint}")
