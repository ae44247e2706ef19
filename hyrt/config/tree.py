"""The one tree of settings, its YAML form, and `key.path=value` overrides."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hyrt.device.names import AUTO, DeviceRequest, parse_requests
from hyrt.errors import ConfigError
from hyrt.objective import Objective
from hyrt.objective.registry import build_objective, check_metric


def _refuse_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")
    return value


Count = Annotated[int, Field(ge=1, lt=2**31), BeforeValidator(_refuse_truth)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0), BeforeValidator(_refuse_truth)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_refuse_truth)]
Index = Annotated[int, Field(ge=0, lt=2**31), BeforeValidator(_refuse_truth)]


Threads = Annotated[int, Field(ge=0, le=1024), BeforeValidator(_refuse_truth)]


def _split_names(value: Any) -> Any:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Section(BaseModel):
    """One branch of the tree: unknown keys are errors and values do not change after construction."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )


class DataConfig(Section):
    source: Annotated[str, BeforeValidator(_to_text)] = "synthetic:community"
    """The dataset: a .npz file, a folder of .npy files, or a name like `synthetic:tiny`, `ogbn-arxiv`,
    `mag240m`."""
    split: Index = 0
    """The number of the split to use, for datasets with several alternative splits."""
    normalize: Literal["none", "row", "standard"] = "none"
    """How to scale features. `row` divides each row by its sum; `standard` gives each column mean 0 and
    deviation 1."""
    batch_size: Count = 1024
    """The number of targets in one step, summed over all trainers."""


class SamplerConfig(Section):
    kind: Literal["neighbor", "saint"] = "neighbor"
    """How mini-batches are sampled. `neighbor` draws neighbours of each vertex without replacement; `saint`
    draws subgraphs by GraphSAINT random walks."""
    fanout: list[Annotated[int, BeforeValidator(_refuse_truth)]] | None = None
    """The number of neighbours to sample in each layer, starting with the targets' layer; -1 takes all
    neighbours. By default 25, then 10 for each further layer."""
    roots: Count = 2000
    """For `saint`: the number of random walks that make one subgraph."""
    walk_length: Count = 2
    """For `saint`: the number of steps of each walk."""
    units: Count = 1
    """For `saint`: the number of subgraphs in one step. The split moves whole subgraphs."""
    on_device: bool = False
    """For `neighbor`: let each trainer whose device can sample draw the neighbours of its own mini-batches.
    The sampled edges are the same."""


class ModelConfig(Section):
    kind: Literal["graphsage", "gcn", "gin", "gat"] = "graphsage"
    """The model: GraphSAGE (Hamilton et al. 2017), GCN (Kipf and Welling 2017), GIN (Xu et al. 2019) or GAT
    (Veličković et al. 2018)."""
    layers: Count = 2
    """The number of layers of the model, and so of blocks in a mini-batch."""
    hidden: Count = 128
    """The width of hidden layers; for GAT, of all heads together."""
    aggregate: Literal["mean", "sum", "max"] = "mean"
    """For `graphsage`: how neighbours are combined. `sum` scales the sampled sum up to all neighbours."""
    heads: Count = 4
    """For `gat`: the number of attention heads."""
    dropout: Fraction = 0.0
    """The dropout rate of hidden activations."""
    input_dropout: Fraction = 0.0
    """The dropout rate of the input features."""
    norm: Literal["none", "layer"] = "none"
    """The normalisation after each hidden layer. `layer` is LayerNorm."""
    residual: bool = False
    """Whether to add each hidden layer's input to its output, through a projection if their widths differ."""


class TrainConfig(Section):
    epochs: Count = 5
    """The number of passes over all training targets. For `saint`, a pass takes as many walk steps as there
    are targets."""
    optimizer: str = "Adam"
    """The name of a class of torch.optim."""
    lr: Positive = 3e-3
    """The learning rate."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_refuse_truth)] = 0.0
    """The weight decay, passed to the optimizer."""
    optimizer_options: dict[str, Any] = {}
    """Further keyword arguments for the optimizer."""
    schedule: str | None = None
    """The name of a class of torch.optim.lr_scheduler. It steps once per epoch (ReduceLROnPlateau: with the
    training loss)."""
    schedule_options: dict[str, Any] = {}
    """Keyword arguments for the schedule."""
    patience: Index = 0
    """Stop after this many evaluations without a better validation metric; 0 never stops early."""
    objective: str = "classification"
    """The objective to train for: `classification`, or one that an installed package declares."""
    objective_options: dict[str, Any] = {}
    """Keyword arguments for the objective."""
    class_weights: Literal["none", "balanced"] = "none"
    """The weights of classes in the loss. `balanced` weights a class by the inverse of its share of the
    training targets."""
    metric: str = "auto"
    """The metric that chooses the best epoch: for `classification`, `accuracy`, `macro_f1`, `roc_auc` or `loss`.
    `auto` is the objective's first, which is accuracy for `classification`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """The precision of matrix products. `bf16` multiplies in bfloat16 and rounds each product to it; weights,
    gradient sums and optimizer state stay in fp32."""

    @model_validator(mode="after")
    def _known(self) -> TrainConfig:
        # Asking imports the objective, and torch with it: the defaults are known to be there.
        if {"objective", "metric"} & self.model_fields_set:
            check_metric(self.objective, self.metric)
        return self

    def build_objective(self) -> Objective:
        """The configured objective.

        Raises
        ------
        ConfigError
            If it refuses its options.
        """
        weights = {} if self.class_weights == "none" else {"class_weights": self.class_weights}
        return build_objective(self.objective, {**weights, **self.objective_options})


class EvaluateConfig(Section):
    every: Index = 1
    """The number of epochs between evaluations; 0 evaluates only at the end."""
    mode: Literal["full", "sampled"] = "full"
    """How to evaluate. `full` computes layer by layer over all neighbours; `sampled` uses the fan-outs of the
    training."""
    memory_gib: Annotated[Positive, Field(le=1e6)] = 1.0
    """The most memory that layer-wise inference may use; beyond it, intermediate layers go to a file."""


class RuntimeConfig(Section):
    pipelined: bool = True
    """Whether stages overlap; `false` runs the stages of each step one after the other."""
    sample_threads: Threads = 0
    """The number of CPU threads that sample, which then stays fixed; 0 chooses it from the available CPUs."""
    load_threads: Threads = 0
    """The number of CPU threads that load features, which then stays fixed; 0 chooses it."""
    train_threads: Threads = 0
    """The number of CPU threads of each CPU trainer, which then stays fixed; 0 chooses it."""
    depth: Annotated[int, Field(ge=1, le=64), BeforeValidator(_refuse_truth)] = 4
    """The number of steps that may be in flight between sampling and their end."""
    fuse_load: bool = True
    """Whether trainers that read host memory aggregate input features while loading them."""
    device_memory_gib: Annotated[Positive, Field(le=1e6)] | None = None
    """The most memory that a device with memory of its own may use for mini-batches and weights; null leaves
    it to the device."""
    on_device_loss: Literal["stop", "continue"] = "stop"
    """What to do if a device fails. `stop` ends the run; `continue` lets the other devices take over its
    targets."""
    stall_timeout_s: Positive = 120.0
    """Fail the run if nothing has moved for this many seconds."""
    trace: bool = False
    """Whether to write trace.json.gz into the run folder, however the run ends: what every thread and device
    queue did and when, for ui.perfetto.dev. `--trace` sets this."""
    trace_events: Annotated[Count, Field(le=10_000_000)] = 20_000
    """The most events that the trace keeps for each track, which bounds its memory. It keeps the newest
    events, and says how many it dropped."""


class BalanceConfig(Section):
    policy: Literal["auto", "static", "bottleneck", "model"] = "auto"
    """How targets and threads move while the run goes on. `static` keeps them where they are. `bottleneck`
    moves a few at a time to relieve the slowest stage. `model` fits the performance model to the latest steps
    and moves to the assignment that it finds best. `auto` is `static` if `split` or shares of devices are
    given or a device is simulated, and `model` otherwise."""
    predict: bool = True
    """Whether to predict the run before it starts, and to start from the predicted split and threads unless
    the settings give them. Needs `hyrt calibrate`."""


class CheckpointConfig(Section):
    every_epochs: Index = 1
    """The number of epochs between checkpoints; 0 writes one only at the end. The end of a run always writes
    one."""
    every_steps: Index = 0
    """The number of steps between further checkpoints; 0 writes none."""
    keep: Count = 3
    """The number of newest checkpoints to keep. Each also has the weights of the best evaluation so far."""


class Config(Section):
    """Every setting of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**63), BeforeValidator(_refuse_truth)] = 0
    """The seed of initial weights, the order of targets, sampled edges and dropout."""
    data: DataConfig = DataConfig()
    sampler: SamplerConfig = SamplerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    devices: Annotated[list[str], Field(min_length=1), BeforeValidator(_split_names)] = ["cpu"]
    """The devices that train, as `kind` or `kind:index`, optionally with their shares of a step
    (`cpu=1,cuda:0=3`); or `auto`, which chooses them."""
    split: list[Index] | None = None
    """The number of targets of a step for each trainer (for `saint`, of subgraphs). They must add up to
    `data.batch_size` (`sampler.units`). By default, the devices' shares, the prediction or equal parts
    decide."""
    runtime: RuntimeConfig = RuntimeConfig()
    balance: BalanceConfig = BalanceConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def gives_split(self) -> bool:
        """Whether the settings say who gets how much of a step."""
        return self.split is not None or any(request.share is not None for request in self.device_requests)

    @property
    def device_requests(self) -> list[DeviceRequest]:
        """Names and shares of `devices`."""
        return parse_requests(self.devices)

    @property
    def units_per_step(self) -> int:
        """What the split cuts: targets, or subgraphs."""
        return self.sampler.units if self.sampler.kind == "saint" else self.data.batch_size

    @property
    def fanouts(self) -> list[int]:
        """Fan-out of each layer, the targets' first."""
        if self.sampler.fanout is not None:
            return self.sampler.fanout
        return [25, *[10] * (self.model.layers - 1)]

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        fanout = self.sampler.fanout
        if fanout is not None:
            if len(fanout) != self.model.layers:
                raise ValueError(
                    f"sampler.fanout has {len(fanout)} entries for model.layers={self.model.layers}: "
                    "give one per layer"
                )
            if any(f < -1 or f == 0 for f in fanout):
                raise ValueError(
                    "sampler.fanout: each entry must be a positive count, or -1 for all neighbours"
                )
        if self.sampler.on_device and self.sampler.kind == "saint":
            raise ValueError("sampler.on_device: only sampler.kind=neighbor can sample on a device")
        if self.model.kind == "gat" and self.model.hidden % self.model.heads:
            raise ValueError(
                f"model.hidden={self.model.hidden} is not a multiple of model.heads={self.model.heads}"
            )
        requests = parse_requests(self.devices)
        if self.split is not None:
            if requests[0].name == AUTO or requests[0].share is not None:
                raise ValueError(
                    "split and the shares of devices (or auto) exclude each other: give one of them"
                )
            if len(self.split) != len(self.devices):
                raise ValueError(
                    f"split has {len(self.split)} entries for {len(self.devices)} devices: give one "
                    "per device"
                )
            what = "sampler.units" if self.sampler.kind == "saint" else "data.batch_size"
            if sum(self.split) != self.units_per_step:
                raise ValueError(f"split adds up to {sum(self.split)}, not to {what}={self.units_per_step}")
        return self


def _known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        keys.append(path)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys.extend(_known_keys(field.annotation, f"{path}."))
    return keys


def _message(error: ValidationError) -> str:
    """The first problem, as a sentence that names the key."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown_key_message(path)
    text = str(first["msg"]).removeprefix("Value error, ")
    return f"setting {path}={first['input']!r}: {text}" if path else text


def unknown_key_message(path: str) -> str:
    """Say that a setting is unknown, with the nearest name there is."""
    known = _known_keys(Config)
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    if not near:
        leaf = path.rsplit(".", 1)[-1]
        near = [key for key in known if key.rsplit(".", 1)[-1] == leaf][:1]
    hint = f": did you mean {near[0]!r}?" if near else ": `hyrt run --print-config` lists all settings"
    return f"unknown setting {path!r}{hint}"


def build_config(settings: Mapping[str, Any]) -> Config:
    """Validate a nested mapping of settings.

    Raises
    ------
    ConfigError
        Naming the first wrong key, and the nearest known one where it is unknown.
    """
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_message(error)) from None


class _Loader(yaml.SafeLoader):
    """YAML, with numbers like 1e-3 read as everyone who types them means them (YAML 1.1 wants 1.0e-3)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _read_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def load_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings as a nested dict (not yet validated)."""
    try:
        loaded = _read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {error}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: expected settings as `key: value`, found a {type(loaded).__name__}")
    return loaded


def apply_overrides(settings: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Set `key.path=value` entries in a nested dict; values are read as YAML.

    Raises
    ------
    ConfigError
        For an entry without `=`, a value that is no YAML, or a path through a plain value.
    """
    for entry in overrides:
        path, equals, text = entry.partition("=")
        if not equals or not path:
            raise ConfigError(f"cannot read {entry!r}: write a setting as key.path=value")
        try:
            value = _read_yaml(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"cannot read the value of {entry!r} as YAML: {error}") from None
        *parents, leaf = path.split(".")
        node = settings
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"cannot set {path!r}: {parent!r} already has the plain value {node!r}")
        node[leaf] = value
    return settings


def to_yaml(config: Config) -> str:
    """The resolved settings as YAML that `hyrt run` reads back to an equal config."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)
