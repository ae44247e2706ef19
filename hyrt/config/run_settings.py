"""Settings of link prediction, the pipeline, full-graph training, load balancing and distributed runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from hyrt_perfmodel.chunk_schedule import MAX_PARTS
from hyrt_perfmodel.network import NETWORK_SUFFIXES, find_network
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from hyrt.section import Bytes, CacheSize, Count, Fraction, NotBool, Positive, Section, parse_list


def _number_or_all(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**20):
        return value
    raise ValueError("must be an integer of at least 1, or all")


class LinksConfig(Section):
    relation: str | None = None
    """For heterogeneous graphs, the relation whose edges are predicted: its name, or `author/writes/paper` if
    several relations have that name. Not needed if there is only one relation."""
    split: str = "random"
    """The edges that are held out for evaluation: `random`; `time`, the latest edges by the times of the
    dataset's edges; or a `.npz` file of vertex pairs: `val` and `test`, and optionally `train`, `train_neg`,
    `val_neg` and `test_neg`."""
    times: str | None = None
    """With `split=time`, for a dataset without edge times: a `.npz` file with `edges`, [n, 2] sources and
    destinations in any order, and `times`, one number per edge."""
    val: Fraction = 0.05
    """The fraction of the links that are validation links."""
    test: Fraction = 0.1
    """The fraction of the links that are test links."""
    supervision: Fraction = 0.0
    """The fraction of the training links that are predicted and carry no messages; the rest only carry
    messages. With 0, every training link does both."""
    exclude: Literal["both", "edges", "none"] | None = None
    """The edges that carry no messages in a step. `edges` excludes the edges of the step's links, `both`
    excludes all edges between their vertices, in either direction and of any relation, and `none` excludes no
    edges. By default `both`; with `--full-graph`, whose steps train all links, `none`."""
    negatives: Literal["uniform", "degree", "batch", "given"] = "uniform"
    """The sampling of negatives (pairs that are not links) in training. Each negative replaces one end of a
    link: `uniform` by any vertex, `degree` by a vertex with a probability that grows with its degree, `batch`
    by the corresponding end of another link of the step; a pair that is an edge is sampled again. `given`
    samples pairs from `train_neg` of the split's file."""
    num_negatives: Annotated[int, Field(ge=1, le=1024), NotBool] = 1
    """The number of negatives for each link of a step."""
    decoder: Literal["dot", "distmult", "transe", "mlp"] = "dot"
    """The score of a pair of embeddings: their inner product (`dot`), an inner product with one weight per
    column (`distmult`), the negative distance after a learned translation (`transe`), or a perceptron with
    one hidden layer that reads both (`mlp`)."""
    width: Count | None = None
    """The width of the embeddings, which are the output of the model; by default `model.hidden`."""
    loss: Literal["bce", "ranking"] = "bce"
    """The loss. `bce` classifies each pair as a link or not, by binary cross entropy; `ranking` trains links
    to score above their negatives."""
    candidates: Annotated[
        int | Literal["all"],
        WithJsonSchema({"type": "integer ≥ 1 or `all`"}),
        BeforeValidator(_number_or_all),
    ] = 100
    """The number of different vertices that are sampled as ranking candidates for each end of a link, for the
    metrics `mrr` and `hits@k`; or `all` vertices. A vertex whose pair with the other end is a known edge is
    excluded from the ranking."""

    @model_validator(mode="after")
    def _check_consistency(self) -> LinksConfig:
        fields = type(self).model_fields
        if self.times is not None and self.split != "time":
            raise ValueError(
                f"links.times has no effect with links.split={self.split}: set links.split=time, "
                "or remove links.times"
            )
        if self.has_split_file:
            for name in ("val", "test", "supervision"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f"links.{name} has no effect with links.split={self.split}, because the file "
                        f"defines the links: remove links.{name}"
                    )
        elif self.negatives == "given":
            raise ValueError("links.negatives=given needs a file with train_neg: set links.split=FILE.npz")
        if self.val + self.test >= 1:
            raise ValueError(
                f"links.val={self.val:g} and links.test={self.test:g} leave no links to train on: lower them"
            )
        return self

    @property
    def has_split_file(self) -> bool:
        return self.split not in ("random", "time")

    @property
    def is_default(self) -> bool:
        return self == LinksConfig()


# Settings of `fullgraph` for devices that train in chunks.
_CHUNK_SETTINGS = ("device_memory", "chunks", "order", "in_flight", "filter_below")
Threads = Annotated[int, Field(ge=0, le=1024), NotBool]
MEASURED = "measured"
"""Value of `distributed.shares` for shares that follow the measured speeds."""


def _rank_shares(value: Any) -> Any:
    """Parse `2,1,1` to a list; return `measured` unchanged."""
    return value if value == MEASURED else parse_list(value)


class RuntimeConfig(Section):
    pipelined: bool = True
    """Whether stages overlap; `false` runs the stages of each step one after the other."""
    sample_threads: Threads = 0
    """The fixed number of CPU threads that sample; 0 chooses it from the available CPUs, and it may change
    during the run."""
    load_threads: Threads = 0
    """The fixed number of CPU threads that load features; 0 chooses it from the available CPUs, and it may
    change during the run."""
    train_threads: Threads = 0
    """The fixed number of CPU threads of each CPU trainer; 0 chooses it from the available CPUs, and it may
    change during the run."""
    max_in_flight_steps: Annotated[int, Field(ge=1, le=64), NotBool] = 4
    """The maximum number of steps in flight, which are sampled but not finished."""
    fuse_load: bool = True
    """Whether trainers that read host memory aggregate input features in place, while loading them or in the
    first layer, instead of copying the rows first.
    """
    device_memory_gib: Annotated[Positive, Field(le=1e6)] | None = None
    """The maximum memory that a device with separate memory may use for mini-batches and weights; `null`
    leaves the limit to the device."""
    on_device_loss: Literal["stop", "continue"] = "stop"
    """The reaction to a device failure. `stop` ends the run; `continue` assigns the targets of the device to
    the other devices."""
    stall_timeout_s: Positive = 120.0
    """The number of seconds without progress after which the run fails."""
    trace: bool = False
    """Whether to write trace.json.gz into the run folder, even if the run fails. The trace shows the activity
    of every thread and device queue over time; open it at ui.perfetto.dev. `--trace` sets this."""
    trace_events: Annotated[Count, Field(le=10_000_000)] = 20_000
    """The maximum number of events per track of the trace, which bounds its memory. The trace keeps the
    newest events, and counts the dropped events."""


class FullGraphConfig(Section):
    host_memory: Bytes | None = None
    """For `--full-graph`, the maximum host memory for the matrices of a step, such as `512MiB` or `1.5GiB`.
    Matrices that exceed it are offloaded to a file in the run folder (or, without a run folder, in the
    system's temporary folder), which is deleted when the run ends. The results are the same. `null` sets no
    limit."""
    device_memory: Bytes | None = None
    """For `--full-graph`, the maximum memory of a device that trains in chunks (`opencl`, `cuda`, `cpu`).
    With `null`, it may use all its memory, and a graph that fits is not divided into chunks."""
    chunks: Annotated[int, Field(ge=0, le=MAX_PARTS), NotBool] = 0
    """For `--full-graph` on a device that trains in chunks, the number P of vertex intervals; edges are
    divided into P x P chunks. 0 means the smallest number with which a step fits into the device's memory. On
    several ranks, each rank divides its local vertices into P intervals."""
    order: Literal["column-row", "row-column"] = "column-row"
    """The order in which chunks are computed. `column-row` iterates over destinations in the forward pass and
    over sources in the backward pass, so that sums stay on the device until they are complete. `row-column`
    is the opposite order, for comparison."""
    in_flight: Annotated[int, Field(ge=0, le=64), NotBool] = 0
    """The number of chunks on a device at once: the next chunks are copied while one is computed. 1 copies
    and computes in turn. 0 means 1 on devices that read the host's memory in place, and 2 on other devices.
    The bits of the result do not depend on it."""
    filter_below: Annotated[float, Field(ge=0, le=1), NotBool] | None = None
    """If a chunk uses less than this fraction of the rows of an interval, the CPU selects the rows that are
    used, and only these rows are copied to the device. 0 copies all rows. With `null`, the run measures the
    rates of the CPU and of the device's link, and computes the fraction below which filtering saves time;
    devices that read the host's memory in place then get all rows. For these devices, filtering only costs
    time, and the run prints a message. The bits of the result do not depend on it."""

    @property
    def chunk_settings(self) -> list[str]:
        """Full names of the chunk settings that are not at their defaults."""
        fields = FullGraphConfig.model_fields
        return [
            f"fullgraph.{name}" for name in _CHUNK_SETTINGS if getattr(self, name) != fields[name].default
        ]

    @property
    def uses_chunks(self) -> bool:
        """Whether the settings require training in chunks."""
        return bool(self.chunk_settings)


class BalanceConfig(Section):
    policy: Literal["auto", "static", "bottleneck", "model"] = "auto"
    """The load balancing of targets and threads during the run. `static` moves nothing. `bottleneck` moves a
    few targets or threads at a time to relieve the slowest stage. `model` fits the performance model to the
    latest steps and switches to the best predicted assignment. `auto` means `static` if `split` or device
    shares are set, if a device is simulated, or with `--full-graph`; otherwise it means `model`."""
    predict: bool = True
    """Whether to predict the run before it starts, and to start from the predicted split and threads unless
    the settings give them. Needs `hyrt calibrate`."""


class DistributedConfig(Section):
    strategy: Literal["model-centric", "p3", "naive-migration", "hopgnn", "home", "local"] = "home"
    """The assignment of targets to ranks if `torchrun` has started several ranks, which also determines the
    communication: see docs/distributed.md. `home` trains each target on the owner of its features. All
    strategies except `local` give the same weights up to rounding. With `local`, each rank selects targets
    from its part, so the mini-batches differ."""
    time_steps: Count | None = None
    """The number of time steps into which `hopgnn` divides a step, at most the number of ranks. By
    default, it starts at the number of ranks, and is decreased by one after each epoch as long as epochs
    get faster."""
    pre_gather: bool = True
    """Whether `hopgnn` fetches a rank's remote rows once for all time steps, instead of separately for each
    time step."""
    shares: Annotated[
        list[Positive] | Literal["measured"] | None,
        WithJsonSchema({"type": "list of numbers > 0, `measured` or `null`"}),
        BeforeValidator(_rank_shares),
    ] = None
    """The shares of the targets that `home` assigns to the ranks, one number per rank, such as `2,1,1`.
    `measured` starts with equal shares, and reduces the shares of slow ranks from the third epoch on, as long
    as epochs get faster; the last bits of the weights then differ from run to run. With `null`, shares are
    equal."""
    cache: CacheSize | None = None
    """The memory that each rank may use to cache remote rows, which it then fetches only once: a size such as
    `2GiB`, or a share of the graph's rows such as `20%`. The rank caches the rows that it is expected to need
    in most steps. The weights are the same. Needs `sampler.kind=neighbor`. `null` disables the cache."""
    comm_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The dtype of dense float32 rows in messages between ranks. `float16` and `bfloat16` halve the number of
    bytes. The rows are then rounded, which changes training slightly."""
    shared_memory_features: bool = True
    """Whether ranks on one machine read each other's dense rows in the files of their parts, instead of
    sending them. The weights are the same unless `comm_dtype` rounds the rows."""
    algorithm: Literal["auto", "1d", "1d-oblivious", "1.5d", "1.5d-oblivious"] = "1d"
    """The algorithm of distributed products with `--full-graph`. With `1d`, each rank has a part of the rows,
    and receives the rows of other parts that its edges need. With `1.5d`, ranks form a grid of `replication`
    columns, and each column computes a part of every product. `1d-oblivious` and `1.5d-oblivious` send all
    rows, needed or not, for comparison. `auto` uses the algorithm that the cost model predicts to be fastest
    on the network, which is measured at the start."""
    replication: Count | None = None
    """The number of ranks that store each part with `algorithm=1.5d`; the number of parts is the number of
    ranks divided by it. By default 2."""
    network: str | None = None
    """The network between the ranks, for the prediction of a run before it starts: a name such as `10gbit`,
    or a file written by `hyrt calibrate --network`. With `null`, the run uses the network that
    `algorithm=auto` measures at the start; with other algorithms, nothing is predicted."""
    timeout_s: Positive = 120.0
    """The number of seconds that ranks wait for each other before the run fails."""

    @property
    def numeric_shares(self) -> tuple[float, ...] | None:
        """Share of a step for each rank, if the shares are numbers, otherwise None."""
        return tuple(self.shares) if isinstance(self.shares, list) else None

    @property
    def num_replicas(self) -> int:
        """Number of ranks that store each part of the rows in full-graph training."""
        if not self.algorithm.startswith("1.5d"):
            return 1
        return 2 if self.replication is None else self.replication

    @model_validator(mode="after")
    def _check_network(self) -> DistributedConfig:
        """Reject unknown network names. Rank 0 reads a file when it predicts the run."""
        if self.network is not None and not self.network.endswith(NETWORK_SUFFIXES):
            find_network(self.network)
        return self

    @model_validator(mode="after")
    def _check_replication(self) -> DistributedConfig:
        """Reject `replication` unless the algorithm replicates parts."""
        if self.replication not in (None, 1) and not self.algorithm.startswith("1.5d"):
            reason = "chooses it itself" if self.algorithm == "auto" else "stores each part on one rank"
            raise ValueError(
                f"distributed.replication={self.replication} has no effect, because "
                f"distributed.algorithm={self.algorithm} {reason}: set "
                "distributed.algorithm=1.5d, or remove distributed.replication"
            )
        return self
