"""Base class of sampler settings, which describe a sampler kind to hyrt, and the registry of kinds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from hyrt.runtime.entry_points import EntryPointGroup
from hyrt.section import ListFromText, NotBool, Section

if TYPE_CHECKING:
    import numpy as np
    from hyrt_perfmodel.degrees import DegreeDistribution
    from hyrt_perfmodel.expected_sizes import BlockSizes
    from numpy.typing import NDArray

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler


class SamplerSettings(Section):
    """Settings section `sampler` for one kind of sampler.

    For each kind, a class derives from this class, declares the settings as fields, and overrides methods as
    needed. The class is registered in the entry-point group `hyrt.samplers` under the name of the kind. Every
    command that reads settings imports it, so import slow dependencies in `build`.
    """

    unit: ClassVar[str] = "target"
    """Smallest piece of work of a trainer; `target` if batches can be split anywhere."""
    units_setting: ClassVar[str] = "data.batch_size"
    """Name of the setting that determines the number of units per step."""
    smaller_unit: ClassVar[str] = "lower sampler.fanout"
    """Remedy if a device does not have enough memory for one unit."""
    is_full_graph: ClassVar[bool] = False
    """Whether all steps have the same full-graph mini-batch, which one device trains without prefetching."""
    preparation: ClassVar[str] = ""
    """Progress message for slow work in `build`, such as `counting ...`."""
    unpredictable: ClassVar[str] = ""
    """Why run time cannot be predicted, and the remedy; empty if it can."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """Features that the kind supports among `hetero`, `links` (the sampler is an
    `hyrt.sampling.block_builder.EdgeExcludingSampler`) and `split_edges`. A run with another one is refused
    before it starts (`hyrt.config.compatibility`)."""

    kind: str = "neighbor"
    """The sampler. `neighbor` samples neighbours of each vertex without replacement; `labor` samples them so
    that vertices share them, and fewer rows are read; `fastgcn` and `ladies` sample the sources of whole
    layers by importance; `weighted` samples neighbours by edge weight; `saint` samples subgraphs by
    GraphSAINT random walks, `shadow` one subgraph around each target; `cluster` trains on graph parts; `full`
    trains on the full graph in each step, and `--full-graph` sets it. Installed packages may declare more
    samplers."""
    fanout: Annotated[list[Annotated[int, NotBool]] | None, ListFromText] = None
    """The number of neighbours to sample in each layer, starting with the targets' layer; -1 selects all
    neighbours. By default 25, then 10 in the next three layers, and 2 in each further layer, because deep
    models reach many vertices even with few neighbours. Samplers without fan-outs use it for
    `evaluate.mode=sampled`."""

    def fanouts(self, layers: int) -> list[int]:
        """Return the fan-out of each layer, targets' layer first."""
        return [25, 10, 10, 10, *[2] * (layers - 4)][:layers] if self.fanout is None else self.fanout

    def check(self, layers: int) -> None:
        """Check the settings for a model with `layers` layers.

        Raises
        ------
        ValueError
            If a setting is invalid; the message names it.
        """
        fanouts = self.fanouts(layers)
        if len(fanouts) != layers:
            raise ValueError(
                f"sampler.fanout={fanouts} does not match model.layers={layers}: set one fan-out per layer"
            )
        if any(fanout < -1 or fanout == 0 for fanout in fanouts):
            raise ValueError(
                "sampler.fanout is invalid: set each entry to a positive count, or to -1 for all neighbours"
            )
        if max(fanouts) >= 2**31:
            raise ValueError(
                f"sampler.fanout has {max(fanouts)}, which is not below {2**31}: use -1 for all neighbours"
            )

    def units_per_step(self, batch_size: int) -> int:
        """Return the number of units per step. `batch_size` is the setting `data.batch_size`."""
        return batch_size

    def restrictions(self) -> Mapping[str, Collection[str]]:
        """Return the features that single settings of the kind refuse, by `setting=value`."""
        return {}

    @property
    def draws_on_device(self) -> bool:
        """Return whether devices that support sampling sample their own mini-batches."""
        return False

    @property
    def draws_whole_steps(self) -> bool:
        """Return whether edges are sampled once per step for exactly the targets of the step."""
        return False

    @property
    def reads_edge_weights(self) -> bool:
        """Return whether sampling accounts for edge weights; if not, the model must multiply by weights."""
        return False

    def describe(self, layers: int, batch_size: int) -> str:
        """Return a short description for the summary line of the run."""
        return f"{self.kind} sampler · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes | None:
        """Return the expected sizes of a mini-batch, which depend only on the degree distribution.

        None if they are unknown: predictions then require an open graph.

        Parameters
        ----------
        degrees
            Degree distribution, with the numbers of vertices and edges.
        layers
            Number of blocks.
        num_targets
            Number of training vertices of the graph.
        units
            Number of units in the mini-batch, which need not be an integer.
        """
        return None

    def units_per_epoch(self, num_targets: int) -> int:
        """Return the number of units per epoch."""
        return num_targets

    def batch_sizes(self, batch: MiniBatch, units: int) -> BlockSizes:
        """Return the sizes of a sampled mini-batch with `units` units."""
        from hyrt_perfmodel.expected_sizes import BlockSizes

        blocks = batch.blocks
        return BlockSizes(
            vertices=(float(blocks[0].num_src), *(float(block.num_dst) for block in blocks)),
            edges=tuple(float(block.num_edges) for block in blocks),
        )

    def persistent_bytes(self, num_vertices: float, num_edges: float) -> float:
        """Return the bytes of the arrays that the sampler needs during the whole run, without the graph."""
        return 0.0

    @abstractmethod
    def build(
        self,
        graph: Graph,
        targets: Ids,
        *,
        layers: int,
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> Sampler:
        """Build the sampler.

        Parameters
        ----------
        graph
            Graph to train on.
        targets
            Distinct training vertices [n], not empty.
        layers
            Number of blocks per mini-batch.
        batch_size
            Value of the setting `data.batch_size`.
        seed
            Seed of all random streams.
        class_weights
            Loss weight of each class [C] float32, or None.
        """


SAMPLERS = EntryPointGroup("hyrt.samplers", "sampler.kind")
