"""What a run says of itself when it begins."""

from __future__ import annotations

from hyrt.config import Config
from hyrt.graph.graph import Graph
from hyrt.observe.events import RunStarted
from hyrt.pipeline.stages import Stages
from hyrt.training.setup import architecture


def run_started(
    config: Config,
    graph: Graph,
    stages: Stages,
    *,
    step: int,
    model: str | None,
    num_targets: int,
    steps_per_epoch: int,
) -> RunStarted:
    """Data, model, devices and threads, in a line each.

    Parameters
    ----------
    config
        All settings.
    graph
        To be trained on.
    stages
        With the trainers and their assignment.
    step
        The first to be done.
    model
        Name of the user's own; None for the configured one.
    num_targets
        Training vertices.
    steps_per_epoch
        Of the sampler.
    """
    if model is None:
        a = architecture(config, graph)
        widths = "-".join(str(w) for w in (a.in_features, *[a.hidden] * (a.layers - 1), a.num_classes))
        model = f"{config.model.kind} {widths}"
    batches = config.sampler.describe(config.model.layers, config.data.batch_size)
    threads = stages.schedule.of(step).threads
    devices = " · ".join(
        f"{trainer.name} {n} {config.sampler.unit}{'s' * (n != 1)}"
        f"{' (simulated)' if trainer.device.info.simulated else ''}"
        f"{' (samples its own)' if trainer.hops is not None else ''}"
        for trainer, n in zip(stages.trainers, stages.split_of(step), strict=True)
    )
    return RunStarted(
        data=f"{graph.name}  {graph.num_vertices:,} vertices · {graph.num_edges / 1e6:.3g} M edges · "
        f"{graph.num_features} features · {graph.num_classes} classes · {num_targets:,} targets",
        model=f"{model} · {batches} · {config.train.optimizer} {config.train.lr:g} · {config.train.precision}",
        devices=f"{devices} · threads sample {threads.sample}, load {threads.load}, train {threads.train}",
        epochs=config.train.epochs,
        steps_per_epoch=steps_per_epoch,
        first_step=step,
    )


def named_split(stages: Stages, step: int) -> dict[str, int]:
    """Units of a step by trainer's name."""
    return {trainer.name: n for trainer, n in zip(stages.trainers, stages.split_of(step), strict=True)}
