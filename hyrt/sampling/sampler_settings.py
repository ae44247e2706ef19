"""What a kind of sampler is: its section of the settings, which answers all that hyrt asks of the kind."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from hyrt.section import Listed, NoTruth, Section

if TYPE_CHECKING:
    import numpy as np
    from hyrt_perfmodel.sizes.degrees import DegreeDistribution
    from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
    from numpy.typing import NDArray

    from hyrt.graph.graph import Graph
    from hyrt.sampling.block import Ids
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler


class SamplerSettings(Section):
    """The section `sampler` of the settings, as one kind of sampler has it.

    A kind derives a class from this one, adds its own settings as fields and overrides what differs. The
    class is declared in the entry-point group `hyrt.samplers` under the kind's name. Importing it should be
    quick, since every command that reads settings does it: what takes long is imported in `build`.
    """

    unit: ClassVar[str] = "target"
    """What the split moves; `target` where a mini-batch can be cut between any two targets."""
    units_setting: ClassVar[str] = "data.batch_size"
    """The setting that says how many units a step has."""
    smaller_unit: ClassVar[str] = "lower sampler.fanout"
    """What to do where a device cannot hold one unit."""
    whole_graph: ClassVar[bool] = False
    """Whether every step is one unit with the same mini-batch, over the whole graph: one device trains it,
    and nothing is to be prepared while it does."""
    preparation: ClassVar[str] = ""
    """What `build` does for so long that the user should be told, like `counting ...`."""
    unpredictable: ClassVar[str] = ""
    """Why the time of a run cannot be predicted, and what to do; empty where it can."""

    kind: str = "neighbor"
    """How mini-batches are sampled. `neighbor` draws neighbours of each vertex without replacement; `labor`
    draws them so that vertices share them, and fewer rows are read; `fastgcn` and `ladies` draw the sources
    of whole layers by importance; `weighted` draws neighbours by the weights of edges; `saint` draws
    subgraphs by GraphSAINT random walks, `shadow` one around each target; `cluster` trains on parts of the
    graph; `full` trains on the whole graph in each step, and `--full-graph` sets it; installed packages may
    declare more."""
    fanout: Annotated[list[Annotated[int, NoTruth]] | None, Listed] = None
    """The number of neighbours to sample in each layer, starting with the targets' layer; -1 takes all
    neighbours. By default 25, then 10 in the next three layers, and 2 in each further one, because deep
    models reach many vertices even with few neighbours. Kinds that draw no neighbours by layer use it for
    `evaluate.mode=sampled`."""

    def fanouts(self, layers: int) -> list[int]:
        """The fan-out of each layer, the targets' first."""
        return [25, 10, 10, 10, *[2] * (layers - 4)][:layers] if self.fanout is None else self.fanout

    def check(self, layers: int) -> None:
        """Check the settings against the rest of them.

        Parameters
        ----------
        layers
            The layers of the model.

        Raises
        ------
        ValueError
            Naming the setting that is wrong.
        """
        fanouts = self.fanouts(layers)
        if len(fanouts) != layers:
            raise ValueError(
                f"sampler.fanout={fanouts} does not go with model.layers={layers}: give one fan-out per layer"
            )
        if any(fanout < -1 or fanout == 0 for fanout in fanouts):
            raise ValueError("sampler.fanout: each entry must be a positive count, or -1 for all neighbours")
        if max(fanouts) >= 2**31:
            raise ValueError(f"sampler.fanout: {max(fanouts)} is not below {2**31}: -1 takes all neighbours")

    def units_per_step(self, batch_size: int) -> int:
        """How many units a step has, of which `batch_size` is the setting `data.batch_size`."""
        return batch_size

    @property
    def draws_on_device(self) -> bool:
        """Whether devices that can shall draw the neighbours of their own mini-batches."""
        return False

    @property
    def draws_whole_steps(self) -> bool:
        """Whether edges are drawn for all targets of a step at once, so that mini-batches of other targets
        cannot be sampled.
        """
        return False

    @property
    def reads_edge_weights(self) -> bool:
        """Whether neighbours are drawn by the weights of edges; else a model has to multiply by them."""
        return False

    def describe(self, layers: int, batch_size: int) -> str:
        """A few words for the line that says what is trained."""
        return f"{self.kind} sampler · batch {batch_size}"

    def expected_sizes(
        self, degrees: DegreeDistribution, *, layers: int, num_targets: int, units: float
    ) -> BlockSizes | None:
        """The expected sizes of a mini-batch, from as little as the degrees of the graph.

        Parameters
        ----------
        degrees
            The vertices, the edges and how these are distributed.
        layers
            The blocks of the mini-batch.
        num_targets
            The training vertices of the graph.
        units
            The units of the mini-batch, which need not be a whole number.

        Returns
        -------
        The sizes, or None where the kind cannot say: then only runs on an open graph can be predicted.
        """
        return None

    def units_per_epoch(self, num_targets: int) -> int:
        """How many units the steps of an epoch have together."""
        return num_targets

    def sizes_of(self, batch: MiniBatch, units: int) -> BlockSizes:
        """The sizes of a mini-batch that was sampled, of which `units` units were asked for."""
        from hyrt_perfmodel.sizes.expected_sizes import BlockSizes

        blocks = batch.blocks
        return BlockSizes(
            vertices=(float(blocks[0].num_src), *(float(block.num_dst) for block in blocks)),
            edges=tuple(float(block.num_edges) for block in blocks),
        )

    def kept_bytes(self, num_vertices: float, num_edges: float) -> float:
        """The bytes that the sampler keeps besides the graph for the whole run."""
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
            The graph to train on.
        targets
            [n] the vertices to train on, distinct and at least one.
        layers
            The blocks of a mini-batch.
        batch_size
            The setting `data.batch_size`.
        seed
            The seed of all draws.
        class_weights
            [C] float32 factors on the losses by class, or None.
        """
