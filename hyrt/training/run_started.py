"""What a run says of itself when it begins."""

from __future__ import annotations

from hyrt.observe.events import RunStarted
from hyrt.pipeline.stages import Stages
from hyrt.quantities import counted
from hyrt.sampling.registry import SAMPLERS
from hyrt.training.compose import RunParts
from hyrt.training.setup import architecture


def run_started(parts: RunParts, stages: Stages, step: int) -> RunStarted:
    """Data, model, devices and threads, in a line each.

    Parameters
    ----------
    parts
        The parts of the run.
    stages
        The stages with the trainers and their assignment.
    step
        The first step to be done.
    """
    config, graph = parts.config, parts.graph
    links = graph.links
    num_targets = len(graph.split("train", config.data.split)) if links is None else len(links.split.train)
    known = f"{graph.vertices.labels_in_words} · {counted(num_targets, 'target')}"
    unit = config.sampler.unit
    if links is not None:
        unit = unit if config.sampler.whole_graph else "link"
        held_out = sum(len(part.links) for part in links.split.held_out.values())
        known = f"{counted(num_targets, 'link')} to train on, {held_out:,} held out"
    if parts.is_own_model:
        model = type(parts.learner.model).__name__
    else:
        a = architecture(config, graph)
        widths = "-".join(str(w) for w in (a.in_features, *[a.hidden] * (a.layers - 1), a.num_classes))
        model = f"{config.model.kind} {widths}"
    with SAMPLERS.blamed(config.sampler.kind, "describe"):
        batches = config.sampler.describe(config.model.layers, min(config.data.batch_size, num_targets))
    named = parts.objective.name
    objective = "" if named == "classification" else f" · {named}"
    assignment = stages.schedule.of(step)
    threads = assignment.threads
    devices = " · ".join(
        f"{trainer.name} {n} {unit}{'s' * (n != 1)}"
        f"{' (simulated)' if trainer.device.info.simulated else ''}"
        f"{' (samples its own)' if trainer.hops is not None else ''}"
        for trainer, n in zip(stages.trainers, assignment.split, strict=True)
    )
    types, rows = "", f" · {counted(graph.num_features, 'feature')}"
    if graph.types is not None:
        types = f" of {counted(len(graph.types.vertex_types), 'type')}"
        rows = f" of {counted(len(graph.types.relations), 'relation')}"
    return RunStarted(
        data=f"{graph.name}  {counted(graph.num_vertices, 'vertex', 'vertices')}{types} · "
        f"{_edges(graph.num_edges)}{rows} · {known}",
        model=f"{model}{objective} · {batches} · {config.train.optimizer} {config.train.lr:g} · "
        f"{config.train.precision}",
        devices=f"{devices} · threads sample {threads.sample}, load {threads.load}, train {threads.train}",
        epochs=parts.epochs,
        steps_per_epoch=parts.steps_per_epoch,
        first_step=step,
        simulated=stages.simulated,
    )


def _edges(count: int) -> str:
    """Millions of them, or all of fewer."""
    return f"{count / 1e6:.3g} M edges" if count >= 1e6 else counted(count, "edge")
