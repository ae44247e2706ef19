"""Settings of a run: one tree of sections, with the meaning and type of each setting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from hyrt.config.run_settings import (
    BalanceConfig,
    DistributedConfig,
    FullGraphConfig,
    LinksConfig,
    RuntimeConfig,
)
from hyrt.config.validation import (
    LENIENT_CONTEXT,
    PluginSection,
    explain_error,
    rename_old_settings,
    to_plain_values,
)
from hyrt.device.discovery import AUTO, DeviceRequest, parse_requests
from hyrt.errors import ConfigError
from hyrt.formatting import pluralize
from hyrt.nn.models.model_kind import MODELS, check_model, find_model
from hyrt.objective import Objective
from hyrt.objective.objective import AUTO_OBJECTIVE, OBJECTIVES, build_objective, check_metric
from hyrt.sampling.sampler_settings import SAMPLERS, SamplerSettings
from hyrt.section import (
    Count,
    Fraction,
    Index,
    ListFromText,
    NotBool,
    Positive,
    RowCacheSize,
    Section,
    parse_list,
    reject_unknown_keys,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

# With fewer steps, a default run on a small graph would end before the model has converged.
_MIN_EPOCHS, _MIN_STEPS = 5, 400
# Epochs of a full graph may take milliseconds, so limit the number of evaluations and checkpoints.
_MAX_EVALUATIONS = 100
_CHECKPOINT_S = 60.0
# Minimum time between two mid-step checkpoints, as a multiple of the time to write one.
_WRITE_INTERVAL_FACTOR = 20.0
CUSTOM_MODEL_CONTEXT = {"defaults of kinds": "left out"}
"""Validation context for settings that train a user-defined module, whatever `model.kind` is."""


def _to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _class_weights(value: Any) -> Any:
    """Parse a text such as `1,2.5` to a list of numbers; return `none` and `balanced` unchanged."""
    if value in ("none", "balanced"):
        return value
    numbers = parse_list(value)
    try:
        if isinstance(numbers, list) and not any(isinstance(number, bool) for number in numbers):
            numbers = [float(number) for number in numbers]
            if all(0 <= number < math.inf for number in numbers) and any(numbers):
                return numbers
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        "must be none, balanced, or one number per class, at least 0 and not all 0, such as [1, 2.5]"
    )


def _device_names(value: Any) -> Any:
    """Parse the names of devices; reject numbers and null."""
    names = parse_list(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be device names such as cpu,opencl:0")
    return names


def _explicit_values(section: Any) -> Any:
    """Return the explicitly set values of a section that has already been built."""
    return section.model_dump(exclude_unset=True) if isinstance(section, Section) else section


class DataConfig(Section):
    source: Annotated[str, BeforeValidator(_to_text)] = "synthetic:community"
    """The dataset: a .npz file, a folder of .npy files, or a name such as `synthetic:tiny`, `ogbn-arxiv`,
    `mag240m`."""
    split: Index = 0
    """The index of the split, for datasets with several alternative splits."""
    normalize: Literal["auto", "none", "row", "length", "standard"] = "auto"
    """The scaling of features. `row` divides each row by its sum, `length` by its Euclidean length;
    `standard` gives each column mean 0 and deviation 1. `auto` means `length` for bags of words (sparse
    features whose values are all 1) and `none` for all other features."""
    feature_dtype: Literal["stored", "auto", "float16", "bfloat16", "int8", "int8-columns"] = "stored"
    """The format to which dense feature rows are rounded before they are used. Half-precision and quantized
    rows take less memory, and fewer bytes are sent to devices. `int8` has one scale per row, `int8-columns`
    one per column. `stored` keeps the format of the dataset. `auto` uses float16 or int8 if that is predicted
    to be at least 3 % faster on a calibrated machine; the run prints its choice and records it in its
    settings."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """The rounding mode of `int8` and `int8-columns`. `nearest` rounds to the nearest code. `stochastic`
    rounds to the code below or above at random, from `seed`, so that the expected value is exact."""
    cache: RowCacheSize | None = None
    """The memory that each device may use for the feature cache, which holds rows for the whole run so that
    they are not sent to the device in each step. The device caches the rows that it is expected to need in
    most steps. Set a size such as `2GiB`, or a share of the graph's rows such as `20%`; `auto` uses half of
    the free memory of devices with separate memory. The weights are the same. `null` disables the cache."""
    batch_size: Count = 1024
    """The number of targets in one step, summed over all trainers."""

    @model_validator(mode="after")
    def _check_rounding(self) -> DataConfig:
        if self.rounding == "stochastic" and not self.feature_dtype.startswith("int8"):
            raise ValueError(
                "data.rounding=stochastic has no effect with "
                f"data.feature_dtype={self.feature_dtype}, which has no int8 codes: set "
                "data.feature_dtype=int8 or int8-columns, or remove data.rounding"
            )
        return self


class ModelConfig(Section):
    kind: Annotated[str, BeforeValidator(MODELS.canonical_name)] = "graphsage"
    """The model: `graphsage` (Hamilton et al. 2017), `gcn` (Kipf and Welling 2017), `gin` (Xu et al. 2019),
    `gat` (Veličković et al. 2018), `ggcn` (gates, Bresson and Laurent 2017), `ggnn` (gated recurrent units,
    Li et al. 2016), `commnet` (Sukhbaatar et al. 2016), `deepgcn` (Li et al. 2019), `gnn-film` (Brockschmidt
    2020); or, for graphs with edge features, `gine` (Hu et al. 2020) and `edge-gat`. Installed packages may
    declare more models."""
    layers: Annotated[Count, Field(le=256)] = 2
    """The number of layers of the model, which is also the number of blocks in a mini-batch; the default
    depends on the model."""
    hidden: Count = 128
    """The width of hidden layers; for GAT, of all heads together."""
    aggregate: Literal["mean", "sum", "max"] = "mean"
    """The aggregation of neighbours in `graphsage`. `sum` scales the sampled sum up to all neighbours."""
    heads: Count = 4
    """The number of attention heads of `gat`."""
    dropout: Fraction = 0.0
    """The dropout rate of hidden activations; the default depends on the model."""
    input_dropout: Fraction = 0.0
    """The dropout rate of the input features."""
    attention_dropout: Fraction = 0.0
    """The dropout rate of the attention weights of `gat`, by default 0.6; other models have no attention
    dropout."""
    norm: Literal["none", "layer"] = "none"
    """The normalisation after each hidden layer, `layer` for LayerNorm; the default depends on the model."""
    residual: bool = False
    """Whether to add each hidden layer's input to its output, through a projection if their widths differ;
    `deepgcn` and `gnn-film` add it after the norm and ReLU, starting with the second layer."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments for the model, for example for a model of an installed package. `{edge_types: n}`
    gives `ggnn` and `gnn-film` a matrix for each of n edge types. `{out_heads: n}` is the number of heads in
    the last layer of `gat`, by default as many as in the other layers."""


class TrainConfig(Section):
    epochs: Count | None = None
    """The number of passes over all training targets. For `saint`, a pass has as many walk steps as there are
    targets. By default 5, or as many epochs as are needed for 400 steps, whichever is larger."""
    optimizer: str = "Adam"
    """The name of a class of torch.optim."""
    lr: Annotated[Positive, Field(le=1e30)] = 3e-3
    """The learning rate; the default depends on the model."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False), NotBool] = 0.0
    """The weight decay, passed to the optimizer; the default depends on the model."""
    optimizer_options: dict[str, Any] = Field(default={})
    """Additional keyword arguments for the optimizer."""
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=False), NotBool] = 0.0
    """The maximum norm of a step's gradient, over all parameters together; larger gradients are scaled down
    to it. 0 disables clipping."""
    warmup_steps: Index = 0
    """The number of steps over which the learning rate grows linearly to the value of `lr` and `schedule`; 0
    disables the warm-up."""
    warmup_epochs: Annotated[float, Field(ge=0, allow_inf_nan=False), NotBool] = 0.0
    """The length of the warm-up in epochs, which may be a fraction, in place of `warmup_steps`."""
    schedule: str | None = None
    """The name of a class of torch.optim.lr_scheduler. It steps once per epoch (ReduceLROnPlateau receives
    the training loss)."""
    schedule_options: dict[str, Any] = Field(default={})
    """Keyword arguments for the schedule."""
    patience: Index = 0
    """The number of evaluations without a better validation metric after which the run stops early; 0
    disables early stopping."""
    objective: Annotated[str, BeforeValidator(OBJECTIVES.canonical_name)] = AUTO_OBJECTIVE
    """The training objective. `auto` chooses it by the labels: `classification` for a class of each vertex,
    `multilabel` for labels of 0 and 1, `regression` for numbers. `links` predicts edges: see `links`.
    Installed packages may declare more objectives."""
    objective_options: dict[str, Any] = Field(default={})
    """Keyword arguments for the objective. With `{loss: mae}`, `regression` trains for the absolute error
    instead of the squared error."""
    class_weights: Annotated[Literal["none", "balanced"] | list[float], BeforeValidator(_class_weights)] = (
        "none"
    )
    """The weights of classes in the loss. `balanced` weights a class by the inverse of its share of the
    training targets; for labels of 0 and 1, it weights each 1 by the number of targets with 0 divided by the
    number with 1. Alternatively, a list with a number for each class or label."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1), NotBool] = 0.0
    """The fraction of each target's label that is spread evenly over all classes in training. Evaluations,
    including their loss, use the original labels. `opencl` computes the smoothed loss on the host; `fpga`
    refuses it."""
    metric: str = "auto"
    """The metric that chooses the best epoch: for `classification`, `accuracy`, `macro_f1`, `roc_auc` or
    `loss`; for `multilabel`, `micro_f1`, `macro_f1`, `mean_average_precision`, `roc_auc` or `loss`; for
    `regression`, `mse`, `mae` or `r2`; for `links`, `roc_auc`, `average_precision`, `mrr`, `hits@1`,
    `hits@10`, `hits@50` or `loss`. `auto` uses the first metric of the objective."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """The precision of matrix products. `bf16` multiplies in bfloat16 and rounds each product to it; weights,
    gradient sums and optimizer state stay in fp32. `ggnn` and custom modules stay in fp32."""

    @model_validator(mode="after")
    def _check_values(self) -> TrainConfig:
        # This check imports the objective and torch, and default values need no check.
        if {"objective", "metric"} & self.model_fields_set:
            check_metric(self.objective, self.metric)
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("train.warmup_steps and train.warmup_epochs are both set: remove one of them")
        return self

    def num_epochs(self, steps_per_epoch: int) -> int:
        """Return the number of epochs: the setting, or a default that depends on `steps_per_epoch`."""
        return self.epochs or max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / steps_per_epoch))

    @property
    def predicts_links(self) -> bool:
        """Whether links are predicted instead of vertices."""
        return self.objective == "links"

    def build_objective(self, labels: NDArray[Any] | None = None, **options: Any) -> Objective:
        """Build the configured objective, or the objective that the labels require.

        If `labels` is None, the labels are classes. `options` are further keyword arguments for the
        objective. Raises ConfigError if the objective rejects its options, or needs labels of another kind.
        """
        settings: dict[str, Any] = (
            {} if self.class_weights == "none" else {"class_weights": self.class_weights}
        )
        if self.label_smoothing:
            settings["label_smoothing"] = self.label_smoothing
        return build_objective(self.objective, {**settings, **options, **self.objective_options}, labels)

    def warmup_factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the warm-up factor of the learning rate for a step, counted from 0; 1 after the warm-up."""
        steps = self.warmup_steps or self.warmup_epochs * steps_per_epoch
        return min(1.0, (step + 1) / steps) if steps else 1.0


class EvaluateConfig(Section):
    every: Index | None = None
    """The number of epochs between evaluations; 0 evaluates only at the end. By default 1; with
    `--full-graph`, whose epochs are one step, the smallest number with at most 100 evaluations per run."""
    mode: Literal["full", "sampled"] = "full"
    """The evaluation mode. `full` computes layer by layer over all neighbours; `sampled` samples neighbours
    uniformly with `sampler.fanout`, for every sampler."""
    memory_gib: Annotated[Positive, Field(le=1e6)] = 1.0
    """The maximum memory of layer-wise inference; beyond it, intermediate layers are offloaded to a file.
    With `--full-graph`, a device that evaluates in the memory of its steps does not use this setting, and the
    run prints a message."""

    def is_due(self, epoch: int, epochs: int, *, full_graph: bool) -> bool:
        """Return whether to evaluate after an epoch, counted from 1, in a run of `epochs` epochs."""
        every = self.every
        if every is None:
            every = math.ceil(epochs / _MAX_EVALUATIONS) if full_graph else 1
        return epoch == epochs or bool(every and epoch % every == 0)


class CheckpointConfig(Section):
    every_epochs: Index | None = None
    """The number of epochs between checkpoints; 0 writes a checkpoint only at the end. By default 1; with
    `--full-graph`, a checkpoint follows the first epoch that ends more than a minute after the last
    checkpoint. The end of a run always writes a checkpoint."""
    every_steps: Index = 0
    """The number of steps between additional checkpoints; 0 disables them. Steps are counted from the start
    of the run, also in resumed runs. With `--full-graph`, a step is an epoch. If such a step ends an epoch,
    its checkpoint follows the epoch's evaluation."""
    keep: Count = 3
    """The number of latest checkpoints to keep, regardless of their trigger. Each checkpoint also has the
    weights of the best evaluation so far."""

    def is_due_within(self, seconds: float, took_s: float) -> bool:
        """Return whether to write a mid-step checkpoint, `seconds` after the last checkpoint.

        `took_s` is the time in seconds that this last checkpoint took.
        """
        return self.every_epochs != 0 and seconds > max(_CHECKPOINT_S, _WRITE_INTERVAL_FACTOR * took_s)

    def is_due_at_step(self, step: int) -> bool:
        """Return whether `every_steps` requires a checkpoint after a step, counted from 1 over the run."""
        return bool(self.every_steps and step % self.every_steps == 0)

    def is_due_at_epoch(self, epoch: int, seconds: float, *, full_graph: bool) -> bool:
        """Return whether to write a checkpoint after an epoch (from 1), `seconds` after the last one."""
        if self.every_epochs is None:
            return not full_graph or seconds > _CHECKPOINT_S
        return bool(self.every_epochs and epoch % self.every_epochs == 0)


class Config(Section):
    """All settings of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**63), NotBool] = 0
    """The seed of initial weights, the order of targets, sampled edges and dropout."""
    data: DataConfig = DataConfig()
    sampler: Annotated[
        SerializeAsAny[SamplerSettings], PluginSection(SAMPLERS, SamplerSettings, default="neighbor")
    ] = Field(default={})  # type: ignore[assignment]
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    links: LinksConfig = LinksConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    devices: Annotated[list[str], Field(min_length=1), BeforeValidator(_device_names)] = Field(
        default=["cpu"]
    )
    """The training devices, as `kind` or `kind:index`, optionally with their shares of a step
    (`cpu=1,cuda:0=3`); or `auto`, which chooses the devices."""
    split: Annotated[list[Index] | None, ListFromText] = None
    """The number of targets per step for each trainer (for `saint`, of subgraphs). The numbers must add up to
    `data.batch_size` (`sampler.units`). By default, the split follows from the shares in `devices`; without
    shares, from the prediction; and without a prediction, all trainers get equal parts."""
    runtime: RuntimeConfig = RuntimeConfig()
    fullgraph: FullGraphConfig = FullGraphConfig()
    balance: BalanceConfig = BalanceConfig()
    distributed: DistributedConfig = DistributedConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    loggers: Annotated[list[Literal["tensorboard", "mlflow", "wandb"]], ListFromText] = Field(default=[])
    """Additional loggers: `tensorboard` and `wandb` (offline) write to the run folder; `mlflow` writes to the
    current folder or to the location that its environment variables set."""

    @model_validator(mode="before")
    @classmethod
    def _complete_settings(cls, settings: Any, info: ValidationInfo) -> Any:
        """Rename former settings, and fill in the defaults of the model kind for settings that are not set.

        The sections of an existing run are complete: a missing setting did not exist when the run was
        started.
        """
        if not isinstance(settings, Mapping):
            return settings
        settings = rename_old_settings(settings)
        if info.context is CUSTOM_MODEL_CONTEXT:
            return settings
        sections = {name: _explicit_values(settings.get(name, {})) for name in cls.model_fields}
        kind = ModelConfig.model_fields["kind"].default
        if isinstance(sections["model"], Mapping):
            kind = sections["model"].get("kind", kind)
        if not isinstance(kind, str):
            return settings  # This error is reported later, with the name of the setting.
        filled = dict(settings)
        train, links = sections["train"], sections["links"]
        scores_by_mlp = (
            isinstance(train, Mapping)
            and isinstance(links, Mapping)
            and (train.get("objective"), links.get("decoder")) == ("links", "mlp")
        )
        for name, value in find_model(MODELS.canonical_name(kind)).defaults.items():
            section, _, key = name.partition(".")
            if name == "train.weight_decay" and scores_by_mlp:
                # The score is a product of the two layers of the perceptron. If both are small, their
                # gradients are small too, so weight decay would reduce them to 0, and all pairs would have
                # the same score.
                value = 0.0
            if info.context is LENIENT_CONTEXT and section in settings:
                continue
            if isinstance(explicit := sections.get(section, {}), Mapping):
                filled[section] = sections[section] = {key: value, **explicit}
        return filled

    @property
    def has_explicit_split(self) -> bool:
        """Whether the settings determine the split of a step."""
        return self.split is not None or any(request.share is not None for request in self.device_requests)

    @property
    def device_requests(self) -> list[DeviceRequest]:
        """Names and shares of the configured devices."""
        return parse_requests(self.devices)

    @property
    def training_requests(self) -> list[DeviceRequest]:
        """Device requests that train: in full-graph training, devices with share 0 do not."""
        requests = self.device_requests
        return (
            [request for request in requests if request.share != 0]
            if self.sampler.is_full_graph
            else requests
        )

    @property
    def units_per_step(self) -> int:
        """Number of units in a step that the split divides: targets or subgraphs."""
        with SAMPLERS.wrap_errors(self.sampler.kind, "units_per_step"):
            return self.sampler.units_per_step(self.data.batch_size)

    def build_objective(self, labels: NDArray[Any] | None = None) -> Objective:
        """Build the objective like `TrainConfig.build_objective`, including the options in `links`."""
        links = self.links
        options = {"decoder": links.decoder, "loss": links.loss} if self.train.predicts_links else {}
        return self.train.build_objective(labels, **options)

    @property
    def excluded_links(self) -> str:
        """Edges that carry no messages in a step: `both`, `edges` or `none`."""
        without = self.sampler.is_full_graph or self.links.supervision > 0
        return self.links.exclude or ("none" if without else "both")

    def _check_links(self, *, was_started: bool) -> None:
        """Reject settings that link prediction does not support, and settings that have no effect, unless an
        earlier version started the run.
        """
        if not self.train.predicts_links:
            if not self.links.is_default:
                names = sorted(self.links.model_fields_set) or ["split"]
                raise ValueError(
                    f"links.{names[0]} has no effect with train.objective={self.train.objective}: set "
                    f"train.objective=links, or remove links.{names[0]}"
                )
            return
        if self.train.objective_options:
            raise ValueError(
                "train.objective_options has no effect with train.objective=links: use the links "
                "settings instead, such as links.decoder=mlp"
            )
        if self.data.split and not was_started:
            raise ValueError(
                f"data.split={self.data.split} has no effect with train.objective=links: remove it, or set "
                "links.split to the file of another link split"
            )
        metric, candidates = self.train.metric, self.links.candidates
        if (
            metric.startswith("hits@")
            and candidates != "all"
            and candidates < int(metric.removeprefix("hits@"))
            and not was_started
        ):
            raise ValueError(
                f"train.metric={metric} is always 1 with links.candidates={candidates}: set links.candidates "
                "to a larger number, or choose another metric"
            )
        if self.sampler.is_full_graph and self.excluded_links != "none" and not self.links.supervision:
            raise ValueError(
                f"links.exclude={self.links.exclude} would leave no edges with --full-graph, "
                "whose steps train all links: remove links.exclude, or set links.supervision=0.3"
            )

    @property
    def fanouts(self) -> list[int]:
        """Fan-out of each layer, starting with the layer of the targets."""
        return self.sampler.fanouts(self.model.layers)

    def _check_full_graph(self, *, any_fanout: bool, was_started: bool) -> None:
        """Reject settings without effect in full-graph training, unless an earlier version
        started the run.
        """
        runtime, defaults = self.runtime, RuntimeConfig.model_fields
        for name in ("max_in_flight_steps", "pipelined"):
            value = getattr(runtime, name)
            if value != defaults[name].default and not was_started:
                raise ValueError(
                    f"runtime.{name}={str(value).lower()} has no effect with "
                    f"sampler.kind={self.sampler.kind}, which runs its stages and steps one after the "
                    f"other: remove runtime.{name}"
                )
        kind, samples = f"sampler.kind={self.sampler.kind}", self.evaluate.mode == "sampled"
        if self.balance.policy in ("bottleneck", "model"):
            raise ValueError(
                f"balance.policy={self.balance.policy} has no effect with {kind}, which has "
                "nothing to balance: remove balance.policy"
            )
        if self.data.batch_size != DataConfig.model_fields["batch_size"].default and not samples:
            raise ValueError(
                f"data.batch_size={self.data.batch_size} has no effect with {kind}, whose steps "
                "train all targets: remove data.batch_size"
            )
        if self.sampler.fanout is not None and not (samples or any_fanout):
            raise ValueError(
                f"sampler.fanout has no effect with {kind}, which uses all neighbours: remove "
                "sampler.fanout, or set evaluate.mode=sampled"
            )

    def _check_no_full_graph(self) -> None:
        """Reject settings that apply only to full-graph training."""
        for name, field in FullGraphConfig.model_fields.items():
            if getattr(self.fullgraph, name) != field.default:
                raise ValueError(
                    f"fullgraph.{name} has no effect with sampler.kind={self.sampler.kind}: specify "
                    f"--full-graph (sampler.kind=full), or remove fullgraph.{name}"
                )

    @model_validator(mode="after")
    def _check_consistency(self, info: ValidationInfo) -> Config:
        requests = parse_requests(self.devices)
        if self.sampler.is_full_graph:
            # A user-defined module gets one block per fan-out. Settings of an existing run must not be
            # rejected.
            self._check_full_graph(
                any_fanout=info.context in (CUSTOM_MODEL_CONTEXT, LENIENT_CONTEXT),
                was_started=info.context is LENIENT_CONTEXT,
            )
        else:
            self._check_no_full_graph()
        with SAMPLERS.wrap_errors(self.sampler.kind, "check", passing=(ValueError,)):
            self.sampler.check(self.model.layers)
        self._check_links(was_started=info.context is LENIENT_CONTEXT)
        if (
            self.train.schedule_options
            and self.train.schedule is None
            and info.context is not LENIENT_CONTEXT
        ):
            raise ValueError(
                "train.schedule_options has no effect without a schedule: set "
                "train.schedule=StepLR, for example, or remove it"
            )
        model = self.model
        check_model(model.kind, model.options, hidden=model.hidden, heads=model.heads)
        if self.split is not None:
            if requests[0].name == AUTO or requests[0].share is not None:
                raise ValueError(
                    "split cannot be combined with device shares or devices=auto: remove one of them"
                )
            if len(self.split) != len(self.devices):
                raise ValueError(
                    f"split has {pluralize(len(self.split), 'number')} for "
                    f"{pluralize(len(self.devices), 'device')}: use one number per device"
                )
            if self.sampler.is_full_graph and len(self.devices) > 1 and info.context is not LENIENT_CONTEXT:
                raise ValueError(
                    f"split has no effect with sampler.kind={self.sampler.kind}, which divides the "
                    "graph between devices: remove split, or set device shares (--devices "
                    "cpu=1,opencl=3)"
                )
            if sum(self.split) != self.units_per_step:
                raise ValueError(
                    f"split adds up to {sum(self.split)}, but must add up to "
                    f"{self.sampler.units_setting}={self.units_per_step}"
                )
        return self

    # Override `__new__`, because pydantic validates a model with its own `__init__` through this method,
    # without the validation context.
    def __new__(cls, *args: Any, **sections: Any) -> Config:
        if args:
            raise ConfigError(
                f"hyrt.Config accepts no positional arguments, got {args[0]!r:.60}: pass sections "
                "as keywords, such as train={'epochs': 5}"
            )
        return super().__new__(cls)

    # Define this validator last, so that it is the outermost one.
    @model_validator(mode="wrap")
    @classmethod
    def _convert_errors(cls, settings: Any, validated: ModelWrapValidatorHandler[Config]) -> Config:
        """Raise a ConfigError that names the first wrong key, and the nearest known key if it is unknown."""
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            if isinstance(value, Section):
                reject_unknown_keys(value, f"{name}.")
        try:
            return validated(to_plain_values(settings))
        except ValidationError as error:
            raise ConfigError(explain_error(error, cls, "hyrt run --print-config")) from None
