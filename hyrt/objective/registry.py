"""The objectives that are declared in the entry-point group `hyrt.objectives`, by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from hyrt.errors import ConfigError, listed
from hyrt.machine.entry_points import EntryPointGroup
from hyrt.objective.objective import Objective

OBJECTIVES = EntryPointGroup("hyrt.objectives", "objective")


def find_objective(name: str) -> type[Objective]:
    """The class behind a name; raises as `EntryPointGroup.load_class`."""
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
    return kind


def build_objective(name: str, options: Mapping[str, Any]) -> Objective:
    """An objective with its options.

    Raises
    ------
    ConfigError, PluginConflict
        As `find_objective`, and if the objective refuses its options.
    """
    kind = find_objective(name)
    if "class_weights" in options and not _takes(kind, "class_weights"):
        raise ConfigError(
            f"train.class_weights={options['class_weights']}: objective {name} does not support class weights"
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

    Raises
    ------
    ConfigError, PluginConflict
        As `find_objective`, and with the nearest name if there is no such metric.
    """
    known = find_objective(name).metrics
    if metric not in ("auto", *known):
        near = difflib.get_close_matches(metric, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        there = listed(("auto", *known))
        raise ConfigError(f"train.metric={metric!r}: the metrics of {name} are {there}{hint}")
