"""From settings and the sizes of a dataset to what the performance model takes. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable

from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.workloads.model_workload import model_workload
from hyrt_perfmodel.workloads.workload import LoadForm, TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.errors import ConfigError


def expected_block_sizes(
    config: Config, degrees: DegreeDistribution, num_targets: int, units: float
) -> BlockSizes:
    """The expected sizes of a mini-batch of some units of the configured sampler, without sampling.

    Raises
    ------
    ConfigError
        If the sampler cannot say.
    """
    sampler, layers = config.sampler, config.model.layers
    found = sampler.expected_sizes(degrees, layers=layers, num_targets=num_targets, units=units)
    if found is None:
        raise ConfigError(
            f"sampler.kind={sampler.kind} cannot be predicted without its data: it does not say how large its "
            "mini-batches become"
        )
    return found


def configured_training(
    config: Config,
    sizes: Callable[[float], BlockSizes],
    *,
    num_features: int,
    num_classes: int,
    num_targets: int,
    value_bytes: int,
    feature_bytes: float,
    graph_bytes: float,
) -> TrainingWorkload:
    """The configured model over mini-batches of known sizes.

    Parameters
    ----------
    config
        All settings.
    sizes
        Of a mini-batch with that many targets.
    num_features, num_classes, num_targets
        Of the dataset.
    value_bytes
        Of one stored feature.
    feature_bytes, graph_bytes
        Of the feature matrix and the topology.
    """
    model = config.model
    widths = [num_features, *[model.hidden] * (model.layers - 1), num_classes]

    def at(targets: float) -> Workload:
        found = sizes(targets)
        return model_workload(
            model.kind,
            found.vertices,
            found.edges,
            widths,
            heads=model.heads,
            bytes_per_value=value_bytes,
        )

    return TrainingWorkload(
        at=at,
        targets_per_epoch=num_targets,
        batch_size=min(config.units_per_step, num_targets),
        model=model.kind,
        best_form=_best_form(config),
        feature_bytes=feature_bytes,
        graph_bytes=graph_bytes,
    )


def _best_form(config: Config) -> LoadForm:
    """The form of input that costs the configured model least, where a trainer takes it."""
    model = config.model
    if not config.runtime.fuse_load or model.input_dropout > 0:
        return "rows"
    if model.kind == "gat":
        return "in_place"
    return "rows" if model.residual and model.layers > 1 else "aggregated"


def terms_of(config: Config) -> Terms:
    """All terms, with what a run of these settings does at the same time."""
    if not config.runtime.pipelined:
        return Terms(overlap="nothing")
    return Terms(overlap="trainers" if config.runtime.depth == 1 else "all")
