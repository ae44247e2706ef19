"""Fan-outs by layer and relation, as settings give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyrt_perfmodel.suggestions import nearest_name

from hyrt.errors import ConfigError
from hyrt.graph.hetero.graph_types import Relation


def resolve_relation_fanouts(
    fanouts: Sequence[int], overrides: Mapping[str, int | Sequence[int]], relations: Sequence[Relation]
) -> list[list[int]]:
    """Return [L][R] fan-outs by layer and relation.

    Parameters
    ----------
    fanouts
        [L] for relations of which nothing is given, the targets' layer first.
    overrides
        For some relations one number, or one a layer. A key is a relation's name, or the names of its source
        type, itself and its destination type with slashes between them where several have its name.
    relations
        [R] those of the graph.

    Raises
    ------
    ConfigError
        Naming a relation that there is not, that is given twice, or has not one fan-out a layer.
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
