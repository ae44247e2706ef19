"""Registry of the objectives in the entry-point group `hyrt.objectives`."""

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
"""Value of `train.objective` that selects the objective by the kind of the dataset's labels."""
OF_LABELS: dict[LabelKind, str] = {
    "classes": "classification",
    "flags": "multilabel",
    "numbers": "regression",
}
"""Objective that `auto` selects, by kind of labels."""


def find_objective(name: str) -> type[Objective]:
    """Load the objective class of a name; raises the errors of `EntryPointGroup.load_class`."""
    # This import loads numpy, which reading settings must not do.
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
    """Build an objective with its options.

    Parameters
    ----------
    name
        The declared name, or `auto` to select by the labels.
    options
        Keyword arguments of the objective.
    labels
        Labels of the dataset; None if there is no dataset yet, in which case `auto` is `classification`.

    Raises
    ------
    ConfigError, PluginConflict
        If the objective cannot be found, rejects its options, or trains for another kind of labels.
    """
    from hyrt.graph.labels.label_kind import SHAPES, label_kind

    found_kind = None if labels is None else label_kind(labels)
    name = OF_LABELS[found_kind or "classes"] if name == BY_LABELS else name
    kind = find_objective(name)
    if labels is not None and found_kind is not None and kind.labels != "links" and kind.labels != found_kind:
        raise ConfigError(
            f"train.objective={name} trains for {SHAPES[kind.labels]}, but the labels are "
            f"{labels.dtype.name} {list(labels.shape)}, which hyrt reads as {SHAPES[found_kind]}: omit "
            f"train.objective for {OF_LABELS[found_kind]}, or write the labels in that form"
        )
    for option, text in (("class_weights", "class weights"), ("label_smoothing", "label smoothing")):
        if option in options and not _accepts_keyword(kind, option):
            raise ConfigError(
                f"train.{option}={options[option]}: objective {name} does not support {text}: omit it"
            )
    try:
        with OBJECTIVES.blamed(name, "making it", passing=(TypeError, ValueError)):
            return kind(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train.objective={name!r} refuses {dict(options)}: {error}") from error


def _accepts_keyword(kind: type[Objective], option: str) -> bool:
    """Return whether a constructor accepts a keyword argument."""
    parameters = inspect.signature(kind).parameters.values()
    return any(each.name == option or each.kind is each.VAR_KEYWORD for each in parameters)


def check_metric(name: str, metric: str) -> None:
    """Check that an objective exists and has the metric that selects the best epoch (or `auto`).

    For objective `auto`, any of the possible objectives may have the metric.

    Raises
    ------
    ConfigError, PluginConflict
        If the objective cannot be found, or lacks the metric; with the nearest name.
    """
    if name == BY_LABELS:
        kinds = [find_objective(each) for each in OF_LABELS.values() if each in OBJECTIVES.declared()]
        metrics = tuple(dict.fromkeys(metric for kind in kinds for metric in kind.metrics))
        name = "the objectives"
    else:
        metrics = find_objective(name).metrics
    if metric not in ("auto", *metrics):
        near = nearest_name(metric, metrics)
        hint = f" (did you mean {near!r}?)" if near else ""
        choices = listed(("auto", *metrics))
        raise ConfigError(f"train.metric={metric!r}: the metrics of {name} are {choices}{hint}")
