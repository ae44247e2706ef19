"""Fan-outs per layer and relation, from settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.errors import ConfigError

if TYPE_CHECKING:
    from hyrt.graph.hetero.graph_types import Relation


def resolve_relation_fanouts(
    fanouts: Sequence[int], overrides: Mapping[str, int | Sequence[int]], relations: Sequence[Relation]
) -> list[list[int]]:
    """Return the [L][R] fan-outs per layer and relation.

    `fanouts` [L] apply to relations that are not in `overrides`, the targets' layer first. An override is one
    number, or one number per layer. Its key is a relation's name, or the names of source type, relation and
    destination type, separated by slashes, if several relations have the same name. Raises ConfigError for a
    relation that does not exist, is given twice, or does not have one fan-out per layer.
    """
    found = [list(fanouts) for _ in relations]
    by: dict[int, str] = {}
    for key, value in overrides.items():
        meant = [r for r, each in enumerate(relations) if each.matches_name(key)]
        if not meant:
            known = sorted({each.name for each in relations})
            near = nearest_name(key, known)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"sampler.relation_fanout: there is no relation {key!r}: {hint}")
        each = [value] * len(fanouts) if isinstance(value, int) else list(value)
        if len(each) != len(fanouts):
            raise ConfigError(
                f"sampler.relation_fanout: {key} has {len(each)} fan-outs for {len(fanouts)} layers: give "
                "one number, or one a layer"
            )
        for relation in meant:
            if relation in by:
                raise ConfigError(
                    f"sampler.relation_fanout: {by[relation]} and {key} are the same relation: give one"
                )
            by[relation], found[relation] = key, each
    return [list(of_layer) for of_layer in zip(*found, strict=True)]
