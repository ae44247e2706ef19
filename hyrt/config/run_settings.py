"""Settings of link prediction, the pipeline, full-graph training, load balancing and distributed runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from hyrt_perfmodel.chunks.chunk_schedule import MAX_PARTS
from hyrt_perfmodel.communication.network import NETWORK_SUFFIXES, find_network
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from hyrt.section import Bytes, CacheSize, Count, Fraction, NotBool, Positive, Section, parse_list


def _number_or_all(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**20):
        return value
    raise ValueError("give a whole number of at least 1, or all")


class LinksConfig(Section):
    relation: str | None = None
    """For typed graphs, the relation whose edges are predicted: its name, or `author/writes/paper` if several
    have that name. Not needed if there is only one relation."""
    split: str = "random"
    """Which edges are held out for evaluations: `random`; `time`, the latest ones by the times of the
    dataset's edges; or a `.npz` file of pairs of vertices: `val` and `test`, and optionally `train`,
    `train_neg`, `val_neg` and `test_neg`."""
    times: str | None = None
    """With `split=time`, for a dataset whose edges have no times: a `.npz` file with `edges`, [n, 2] sources
    and destinations in any order, and `times`, a number for each of them."""
    val: Fraction = 0.05
    """The fraction of the links that are validation links."""
    test: Fraction = 0.1
    """The fraction of the links that are test links."""
    supervision: Fraction = 0.0
    """The fraction of the training links that are predicted and carry no messages; the rest only carry
    messages. With 0, every training link does both."""
    exclude: Literal["both", "edges", "none"] | None = None
    """Which edges carry no messages in a step. `edges` leaves out the edges of the step's links, `both`
    leaves out all edges between their vertices, in either direction and of any relation, and `none` leaves
    out no edges. By default `both`; with `--full-graph`, whose steps train all links, `none`."""
    negatives: Literal["uniform", "degree", "batch", "given"] = "uniform"
    """How pairs that are not links are drawn in training. Each replaces one end of a link: `uniform` by any
    vertex, `degree` by a vertex with a chance that grows with its degree, `batch` by the corresponding end of
    another link of the step; a pair that is an edge is drawn again. `given` draws pairs from `train_neg` of
    the split's file."""
    num_negatives: Annotated[int, Field(ge=1, le=1024), NotBool] = 1
    """The number of pairs that are not links, for each link of a step."""
    decoder: Literal["dot", "distmult", "transe", "mlp"] = "dot"
    """How a pair of embeddings is scored: by their inner product (`dot`), by an inner product with a weight
    for each column (`distmult`), by the negative distance after a learned translation (`transe`), or by a
    perceptron with one hidden layer that reads both (`mlp`)."""
    width: Count | None = None
    """The width of the embeddings, which are the output of the model; by default `model.hidden`."""
    loss: Literal["bce", "ranking"] = "bce"
    """`bce` classifies each pair as a link or not, by binary cross entropy; `ranking` trains links to score
    above the pairs drawn for them."""
    candidates: Annotated[
        int | Literal["all"],
        WithJsonSchema({"type": "integer ≥ 1 or `all`"}),
        BeforeValidator(_number_or_all),
    ] = 100
    """The number of different vertices that are drawn to rank each end of a link among them, for the metrics
    `mrr` and `hits@k`; or `all` vertices. A vertex whose pair with the other end is a known edge is left out
    of the ranking."""

    @model_validator(mode="after")
    def _check_consistency(self) -> LinksConfig:
        fields = type(self).model_fields
        if self.times is not None and self.split != "time":
            raise ValueError(
                f"links.times has no effect with links.split={self.split}: set links.split=time, or omit it"
            )
        if self.has_split_file:
            for name in ("val", "test", "supervision"):
                if getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f"links.{name} has no effect with links.split={self.split}, whose links are those of "
                        "the file: omit it"
                    )
        elif self.negatives == "given":
            raise ValueError(
                "links.negatives=given draws from train_neg of a file: give links.split=FILE.npz"
            )
        if self.val + self.test >= 1:
            raise ValueError(f"links.val={self.val:g} and links.test={self.test:g} leave nothing to train on")
        return self

    @property
    def has_split_file(self) -> bool:
        return self.split not in ("random", "time")

    @property
    def is_default(self) -> bool:
        return self == LinksConfig()


# Settings of `fullgraph` for devices that train in chunks.
_CHUNK_SETTINGS = ("device_memory", "chunks", "order", "in_flight", "filter_below")
# Strategies that exchange no input rows.
_STRATEGIES_WITHOUT_ROWS = ("p3", "naive-migration")
Threads = Annotated[int, Field(ge=0, le=1024), NotBool]
MEASURED = "measured"
"""Value of `distributed.shares` if shares follow measured speeds."""


def _rank_shares(value: Any) -> Any:
    """Parse `2,1,1` to a list; return `measured` unchanged."""
    return value if value == MEASURED else parse_list(value)


class RuntimeConfig(Section):
    pipelined: bool = True
    """Whether stages overlap; `false` runs the stages of each step one after the other."""
    sample_threads: Threads = 0
    """The number of CPU threads that sample, which then stays fixed; 0 chooses it from the available CPUs."""
    load_threads: Threads = 0
    """The number of CPU threads that load features, which then stays fixed; 0 chooses it."""
    train_threads: Threads = 0
    """The number of CPU threads of each CPU trainer, which then stays fixed; 0 chooses it."""
    max_in_flight_steps: Annotated[int, Field(ge=1, le=64), NotBool] = 4
    """The number of steps that may be in flight, which means that they are sampled but not finished."""
    fuse_load: bool = True
    """Whether trainers that read host memory aggregate input features in place, while loading them or in the
    first layer, instead of copying the rows first.
    """
    device_memory_gib: Annotated[Positive, Field(le=1e6)] | None = None
    """The maximum memory that a device with separate memory may use for mini-batches and weights; null
    leaves it to the device.
    """
    on_device_loss: Literal["stop", "continue"] = "stop"
    """What to do if a device fails. `stop` ends the run; `continue` lets the other devices take over its
    targets."""
    stall_timeout_s: Positive = 120.0
    """Fail the run if there is no progress for this many seconds."""
    trace: bool = False
    """Whether to write trace.json.gz into the run folder, however the run ends. The trace shows what every
    thread and device queue did, and when; open it at ui.perfetto.dev. `--trace` sets this."""
    trace_events: Annotated[Count, Field(le=10_000_000)] = 20_000
    """The maximum number of events that the trace keeps for each track, which bounds its memory. It keeps the
    newest events, and counts how many older ones it has dropped.
    """


class FullGraphConfig(Section):
    host_memory: Bytes | None = None
    """For `--full-graph`, the maximum host memory for the matrices of a step, such as `512MiB` or `1.5GiB`.
    Matrices that exceed it are kept in a file in the run folder (or, without a run folder, in the system's
    folder for temporary files), which is deleted when the run ends. The results are the same. `null` sets
    no limit.
    """
    device_memory: Bytes | None = None
    """For `--full-graph`, how much of its memory a device that trains in chunks (`opencl`, `cuda`, `cpu`) may
    use. `null` lets it use all its memory; then a graph that fits is not cut."""
    chunks: Annotated[int, Field(ge=0, le=MAX_PARTS), NotBool] = 0
    """For `--full-graph` on a device that trains in chunks, the number P of intervals that vertices are cut
    into; edges are cut into P x P chunks. 0 takes the smallest number with which a step fits into the
    device's memory. On several ranks, each rank cuts its own vertices into P intervals."""
    order: Literal["column-row", "row-column"] = "column-row"
    """The order in which chunks are computed. `column-row` goes by destinations in the forward pass and by
    sources in the backward pass, so that sums stay on the device until they are complete. `row-column` is the
    opposite order, for comparison."""
    in_flight: Annotated[int, Field(ge=0, le=64), NotBool] = 0
    """How many chunks a device holds at once: the next ones are copied while one is computed. 1 copies and
    computes in turn. 0 means 1 on devices that read the host's memory in place, and 2 on others. The bits of
    the result do not depend on it."""
    filter_below: Annotated[float, Field(ge=0, le=1), NotBool] | None = None
    """If a chunk uses less than this fraction of the rows of an interval, the CPU picks out the rows that are
    used, and only these are copied to the device. 0 copies all rows. With `null`, the run measures the rates
    of the CPU and of the device's link, and computes from these the fraction below which picking out rows
    saves time; devices that read the host's memory in place then get all rows. For these devices, picking out
    rows only costs time, which the run reports. The bits of the result do not depend on it."""

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
    """How targets and threads are moved during the run. `static` does not move them. `bottleneck` moves a few
    at a time to relieve the slowest stage. `model` fits the performance model to the latest steps and
    switches to the assignment that it finds best. `auto` means `static` if `split` or shares of devices are
    given, if a device is simulated, or with `--full-graph`; otherwise it means `model`."""
    predict: bool = True
    """Whether to predict the run before it starts, and to start from the predicted split and threads unless
    the settings give them. Needs `hyrt calibrate`."""


class DistributedConfig(Section):
    strategy: Literal["model-centric", "p3", "naive-migration", "hopgnn", "home", "local"] = "home"
    """Which rank trains which target if `torchrun` has started several ranks, and therefore what is sent: see
    docs/distributed.md. `home` trains each target on the rank that has its features. All strategies but
    `local` give the same weights up to rounding. With `local`, each rank draws targets from its own part, so
    the mini-batches differ."""
    time_steps: Count | None = None
    """The number of time steps into which `hopgnn` divides a step, at most the number of ranks. By default,
    it starts as the number of ranks, and is lowered by one after each epoch as long as epochs get faster."""
    pre_gather: bool = True
    """Whether `hopgnn` fetches a rank's remote rows once for all time steps, instead of separately for each
    of them."""
    shares: Annotated[
        list[Positive] | Literal["measured"] | None,
        WithJsonSchema({"type": "list of numbers > 0, `measured` or `null`"}),
        BeforeValidator(_rank_shares),
    ] = None
    """The shares of the targets that `home` gives to the ranks, one number for each rank, such as `2,1,1`.
    `measured` begins with equal shares, and gives slow ranks less from the third epoch on, as long as epochs
    get faster; the last bits of the weights then differ from run to run. With `null`, shares are equal."""
    cache: CacheSize | None = None
    """How much memory each rank may use to keep rows of other ranks, which it fetches only once: a size such
    as `2GiB`, or a share of the graph's rows such as `20%`. It keeps the rows that it is expected to need in
    most steps. The weights are the same. Needs `sampler.kind=neighbor`. `null` keeps none."""
    comm_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """The type in which ranks send each other the values of dense float32 rows. `float16` and `bfloat16`
    halve their bytes. Rows that are sent are then rounded, which changes training slightly."""
    shared_memory_features: bool = True
    """Whether ranks on one machine read each other's dense rows in the files of their parts, instead of
    sending them. The weights are the same unless `comm_dtype` rounds what is sent."""
    algorithm: Literal["auto", "1d", "1d-oblivious", "1.5d", "1.5d-oblivious"] = "1d"
    """How ranks multiply with `--full-graph`. With `1d`, each rank has a part of the rows, and receives those
    rows of other parts that its edges need. With `1.5d`, ranks form a grid of `replication` columns, and each
    column computes a part of every product. `1d-oblivious` and `1.5d-oblivious` send all rows, needed or not,
    for comparison. `auto` takes what the cost model predicts to be fastest on the network, which is measured
    at the start."""
    replication: Count | None = None
    """The number of ranks that have each part with `algorithm=1.5d`; the number of parts is the number of
    ranks divided by it. By default 2."""
    network: str | None = None
    """The network between the ranks, for the prediction of a run before it starts: a name such as `10gbit`,
    or the file that `hyrt calibrate --network` wrote. With `null`, the run uses the network that
    `algorithm=auto` measures at the start; with other algorithms, nothing is predicted."""
    timeout_s: Positive = 120.0
    """The number of seconds that ranks wait for each other before the run fails."""

    @property
    def numeric_shares(self) -> tuple[float, ...] | None:
        """Fractions of a step per rank, if they are set as numbers."""
        return tuple(self.shares) if isinstance(self.shares, list) else None

    @property
    def num_replicas(self) -> int:
        """Number of ranks that have each part of the rows in full-graph training."""
        if not self.algorithm.startswith("1.5d"):
            return 1
        return 2 if self.replication is None else self.replication

    @model_validator(mode="after")
    def _check_network(self) -> DistributedConfig:
        """Reject unknown network names; a file is read on rank 0 when the run is predicted."""
        if self.network is not None and not self.network.endswith(NETWORK_SUFFIXES):
            find_network(self.network)
        return self

    @model_validator(mode="after")
    def _check_replication(self) -> DistributedConfig:
        """Reject `replication` unless the algorithm replicates parts."""
        if self.replication not in (None, 1) and not self.algorithm.startswith("1.5d"):
            reason = "chooses it" if self.algorithm == "auto" else "has each part at one rank"
            raise ValueError(
                f"distributed.replication={self.replication} needs distributed.algorithm=1.5d: "
                f"{self.algorithm} {reason}"
            )
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> DistributedConfig:
        """Reject `shares` for strategies that ignore them."""
        if self.shares is not None and self.strategy != "home":
            raise ValueError(
                "distributed.shares is only for the strategy home, which moves targets between ranks: omit "
                f"it with {self.strategy}"
            )
        return self

    @model_validator(mode="after")
    def _check_exchanged_rows(self) -> DistributedConfig:
        """Reject settings of exchanged rows for strategies that exchange none."""
        changed = [
            name
            for name in ("cache", "comm_dtype")
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if changed and self.strategy in _STRATEGIES_WITHOUT_ROWS:
            raise ValueError(
                f"distributed.{changed[0]} is for strategies that fetch rows, and {self.strategy} fetches "
                f"none: omit distributed.{changed[0]}"
            )
        return self
