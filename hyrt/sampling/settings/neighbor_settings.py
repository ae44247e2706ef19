"""Settings of node-wise neighbour sampling, with fan-outs per relation, derived sizes and estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from hyrt_perfmodel.suggestions import nearest_name
from pydantic import Field

from hyrt.errors import ConfigError
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.section import NotBool

if TYPE_CHECKING:
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes

    from hyrt.graph.graph import Graph
    from hyrt.graph.hetero.graph_types import Relation
    from hyrt.sampling.block import Ids
    from hyrt.sampling.sampler import Sampler


def resolve_relation_fanouts(
    fanouts: Sequence[int], overrides: Mapping[str, int | Sequence[int]], relations: Sequence[Relation]
) -> list[list[int]]:
    """Return the fan-outs [L][R] per layer and relation.

    `fanouts` [L], with the targets' layer first, apply to relations that are not in `overrides`. An override
    is one number, or one number per layer. Its key is the name of a relation or, if several relations have
    this name, source type, relation and destination type separated by slashes. Raises ConfigError for a
    relation that does not exist, is given twice, or does not have one fan-out per layer.
    """
    found = [list(fanouts) for _ in relations]
    by: dict[int, str] = {}
    for key, value in overrides.items():
        meant = [r for r, each in enumerate(relations) if each.matches_name(key)]
        if not meant:
            known = sorted({each.name for each in relations})
            near = nearest_name(key, known)
            hint = f"did you mean {near!r}?" if near else f"choose one of {', '.join(known)}"
            raise ConfigError(f"sampler.relation_fanout has an unknown relation {key!r}: {hint}")
        each = [value] * len(fanouts) if isinstance(value, int) else list(value)
        if len(each) != len(fanouts):
            raise ConfigError(
                f"sampler.relation_fanout has {len(each)} fan-outs for {key}, but the model has "
                f"{len(fanouts)} layers: use one number, or one per layer"
            )
        for relation in meant:
            if relation in by:
                raise ConfigError(
                    f"sampler.relation_fanout sets the same relation twice, as {by[relation]} and {key}: "
                    "keep only one of them"
                )
            by[relation], found[relation] = key, each
    return [list(of_layer) for of_layer in zip(*found, strict=True)]


class NeighborSettings(SamplerSettings):
    """Node-wise sampling of `fanout` neighbours without replacement, per vertex, layer and relation."""

    supports: ClassVar[frozenset[str]] = frozenset({"hetero", "links", "split_edges"})

    on_device: bool = False
    """Whether each trainer whose device supports sampling samples the neighbours of its mini-batches. The
    sampled edges are the same."""

    degrees: Literal["full", "sampled"] = "full"
    """The degrees by which GCN normalises. `full` uses the degrees of the graph, so that sampled sums are
    unbiased. `sampled` uses at most the fan-out of the layer, which is biased, less noisy, and closer to
    other libraries' GCNs over sampled subgraphs. Evaluations use the degrees of the graph."""

    relation_fanout: dict[str, Annotated[int, NotBool] | list[Annotated[int, NotBool]]] = Field(default={})
    """Fan-outs for some relations of a heterogeneous graph, in place of `sampler.fanout`, such as
    `{writes: 5, cites: [10, 5]}`: one number, or one for each layer, starting with the targets' layer. If
    several relations have the same name, write `author/writes/paper` for one of them."""

    def check(self, layers: int) -> None:
        super().check(layers)
        for name, value in self.relation_fanout.items():
            fanouts = [value] if isinstance(value, int) else value
            if any(fanout < -1 or fanout >= 2**31 for fanout in fanouts):
                raise ValueError(
                    f"sampler.relation_fanout sets {name} to {value}: use counts of at least 0, or -1 for "
                    "all neighbours"
                )

    def restrictions(self) -> Mapping[str, Collection[str]]:
        found: dict[str, Collection[str]] = {}
        if self.degrees == "sampled":
            found["sampler.degrees=sampled"] = ("hetero", "edge_weights", "device_sampling")
        if self.on_device:
            # A device cannot leave out the edges of links, and has only the edges of its topology.
            found["sampler.on_device=true"] = ("hetero", "links", "split_edges")
        if self.relation_fanout:
            found["sampler.relation_fanout"] = ("homogeneous",)
        return found

    @property
    def draws_on_device(self) -> bool:
        return self.on_device

    def describe(self, layers: int, batch_size: int) -> str:
        return f"fan-out {','.join(map(str, self.fanouts(layers)))} · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes:
        from hyrt_perfmodel.expected_sizes import expected_sizes

        return expected_sizes(degrees, self.fanouts(layers), units)

    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: Any = None,
    ) -> Sampler:
        from hyrt.sampling.neighbor_sampler import NeighborSampler
        from hyrt.sampling.sampler import check_graph

        if check_graph(graph).types is not None:
            return self._by_relation(
                graph, targets, layers=layers, batch_size=batch_size, seed=seed, class_weights=class_weights
            )
        return NeighborSampler(
            graph,
            targets,
            self.fanouts(layers),
            batch_size,
            seed,
            class_weights=class_weights,
            sampled_degrees=self.degrees == "sampled",
        )

    def _by_relation(self, graph: Graph, targets: Ids, *, layers: int, **options: Any) -> Sampler:
        """Build the sampler of a heterogeneous graph."""
        from hyrt.sampling.neighbor_sampler import RelationSampler

        assert graph.types is not None
        fanouts = resolve_relation_fanouts(self.fanouts(layers), self.relation_fanout, graph.types.relations)
        return RelationSampler(graph, targets, fanouts, **options)
