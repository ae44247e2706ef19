"""Trained model of a run: loading with its graph, and export as files that do not require hyrt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from hyrt.config import Config, build_config
from hyrt.config.load import change_config, parse_settings
from hyrt.errors import CheckpointError, ConfigError, DataError, HyrtError, UnsupportedModelError, join_names
from hyrt.formatting import pluralize
from hyrt.graph import open_graph
from hyrt.graph.conform import conform, find_embedding_rows
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_split import LinkSplit
from hyrt.graph.run_schema import RunSchema, build_run_schema
from hyrt.inference.evaluate import score_vertices
from hyrt.inference.output_rows import NotFiniteRows, select_vertices
from hyrt.nn.architecture import Architecture
from hyrt.nn.link_gnn import LinkGNN
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import check_edge_values, check_types
from hyrt.nn.models.model_kind import EDGE_FEATURES
from hyrt.report import plain_features, plain_gnn, plain_hetero_gnn
from hyrt.report.run_folder import RunFolder
from hyrt.runtime.files import atomic_output
from hyrt.training.checkpoint import Checkpoint, has_checkpoint, load_checkpoint, load_newest_checkpoint
from hyrt.training.open_graph import (
    LINKS,
    apply_feature_dtype,
    find_run_split,
    link_graph,
    number_by_ids,
    opened_graph,
    unsplit_links,
    warn_of_training_links,
)
from hyrt.training.setup import assign_threads, build_model, evaluation_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """Trained model of a run, with its graph and metrics."""

    model: torch.nn.Module
    """Model in evaluation mode."""
    config: Config
    metrics: Mapping[str, Mapping[str, float]]
    """Metrics of the best evaluation, keyed by split; empty if the run was never evaluated."""
    graph: Graph
    """Dataset of the run, or other data in the schema of the run.

    If the dataset was reordered (`hyrt data convert --order`), its arrays and splits are in the new order,
    but `scores` takes and returns vertices in the original order: vertex `v` of the graph has the original
    number `graph.vertices.vertex_ids[v]`. Otherwise, `vertex_ids` is None.
    """
    weights: str
    """Description of where the weights come from."""
    schema: RunSchema
    """Data-dependent results of training other than weights: class names, feature columns and scaling."""
    scratch: Path | None
    """Folder for temporary files: the run folder, or None if it is not writable."""

    def scores(self, vertices: Sequence[int] | NDArray[Any] | str = "all") -> NDArray[np.float32]:
        """Score vertices of the graph from all their neighbours, like `hyrt infer`.

        Parameters
        ----------
        vertices
            Original vertex numbers of the dataset; `all`, `train`, `val` or `test`; or the path of a .npy
            file with numbers.
            In a reordered dataset, vertices `v` of `graph` have the original numbers
            `graph.vertices.vertex_ids[v]`.

        Returns
        -------
        [n, outputs] float32: one column per class, label or regression target, in the order of
        `schema.classes` if the classes have names. Embeddings if the run predicts links.

        Raises
        ------
        DataError
            If there is no such vertex.
        """
        model = self.model
        output_name = "embeddings" if isinstance(model, LinkGNN) else "scores"
        model = model.embedding_model() if isinstance(model, LinkGNN) else model
        chosen = select_vertices(self.graph, vertices, self.config.data.split)
        with closing(evaluation_workers(assign_threads(self.config))) as workers:
            rows = score_vertices(model, self.graph, chosen, self.config, workers, full=True)
        not_finite = NotFiniteRows(model, f"the {output_name}", ("vertices", "vertex"))
        ids = self.graph.vertices.vertex_ids
        not_finite.add(rows, chosen if ids is None else ids[chosen])
        not_finite.warn()
        return rows


def open_trained_run(
    run: Path,
    overrides: list[str],
    checkpoint: str,
    warn: Callable[[str], None] = lambda text: None,
    *,
    graph: Any = None,
    module: torch.nn.Module | None = None,
    labels_count: bool = True,
) -> TrainedRun:
    """Open a run's graph and build its model with the trained weights.

    `run` is a run folder, or the folder of the checkpoints of `hyrt.train`. `checkpoint` is `best` (`newest`
    if nothing was evaluated), `newest` or a file. `warn` is called about skipped damaged checkpoints, a
    changed dataset, and unused parts of other data. `graph` (a graph, or any argument of `hyrt.load`)
    replaces the run's dataset; with `labels_count`, its labels and splits are used and its links held out.
    `module` replaces the configured model.

    Raises CheckpointError if there are no such weights or they do not match the graph, ConfigError if no
    dataset is named, and DataError or UnsupportedModelError if graph and model have different edge types.
    """
    checkpoints = run / "checkpoints"
    # `hyrt.train` writes only checkpoints, which have all settings but the dataset.
    is_python_training = (
        not (run / "config.yaml").is_file() and checkpoints.is_dir() and has_checkpoint(checkpoints)
    )
    if (
        is_python_training
        and graph is None
        and not any(entry.startswith("data.source=") for entry in overrides)
    ):
        # A folder of `hyrt run` with other files has lost its settings.
        reason = "was trained from Python and does not name its dataset: specify it"
        if RunFolder(run).metrics_path.exists() or (run / "summary.json").exists():
            reason = (
                "no longer has its config.yaml, which named its dataset: restore it, or specify the dataset"
            )
        raise ConfigError(f"{run} {reason} (--data, or graph= in Python)")
    folder = None if is_python_training else RunFolder.open(run)
    if checkpoint in ("best", "newest"):
        loaded = load_newest_checkpoint(checkpoints, warn)
    else:
        loaded = load_checkpoint(Path(checkpoint))
    if folder is None:
        settings = build_config(parse_settings(loaded.state["config"], str(loaded.path)), lenient=True)
    else:
        settings = folder.config()
    config = change_config(settings, overrides, custom_model=module is not None)
    best = loaded.state["best"]
    if checkpoint == "best" and best["weights"] is not None:
        weights, description = best["weights"], f"best validation, epoch {best['epoch']}"
    else:
        weights, description = loaded.state["model"], f"step {loaded.step}"
    # `has_run_data` implies unchanged data settings except the split; `has_run_dataset` only the same source.
    has_run_data = graph is None and not any(
        entry.startswith("data.") and not entry.startswith("data.split=") for entry in overrides
    )
    has_run_dataset = graph is None and not any(entry.startswith("data.source=") for entry in overrides)
    schema = _saved_schema(loaded, settings, run, has_run_dataset=has_run_dataset)
    with RunFolder(run).explain_moved_dataset(config) if graph is None else nullcontext():
        source = config.data.source if graph is None else graph
        if schema is None:
            _check_scaling(loaded, config, run, source, has_run_dataset=has_run_dataset)
        graph = open_graph(source, normalize=config.data.normalize if schema is None else "none")
        is_graph = isinstance(source, Graph)
        if schema is not None:
            graph = conform(graph, schema, warn, uses_labels=labels_count)
        if config.train.predicts_links:
            file = run / LINKS
            # Vertices of the run are matched by index, by original number, and by id.
            positions = graph.positions
            numberings: list[NDArray[Any] | None] = [None] if positions is None else [None, positions]
            split: Path | LinkSplit | None = None
            # A damaged file of the run's dataset causes an error with a remedy later.
            with suppress(DataError) if has_run_dataset else nullcontext():
                split = find_run_split(config, graph, loaded, file, numberings)
            if split is None and has_run_dataset:
                split = file
            elif split is None:
                by_id = number_by_ids(graph, settings, loaded, file)
                split = find_run_split(config, graph, loaded, file, by_id)
                numberings += by_id
            if split is None and (is_graph or not labels_count):
                graph = unsplit_links(config, graph)
            else:
                graph = link_graph(config, graph, split)
                if split is None and graph.links is not None:
                    for text in graph.links.split.warnings:
                        warn(text)
                    warn_of_training_links(graph, file, numberings, warn)
        if schema is not None or not is_graph:
            graph = apply_feature_dtype(config, graph, schema)
    changes = _find_changes(graph, config, loaded) if has_run_data else []
    if changes:
        descriptions = {
            "labels": "other labels or splits",
            "edges": "other edges",
            "held_out": "other validation or test vertices",
            "features": "other features",
        }
        warn(
            f"{graph.name} has {join_names([descriptions[each] for each in changes])} than when {run} was "
            "trained on it. The results are for the current dataset; to use the previous one, specify it "
            "with --data (graph= in Python)"
        )
    if schema is None:
        schema = build_run_schema(graph)
        # Class names of other data may differ.
        schema = schema if has_run_dataset else replace(schema, classes=None)
    edges = graph.fingerprint.edges
    has_run_edges = edges is not None and edges == loaded.state.get("edges")
    saved = loaded.state.get("vertices")
    column = config.data.split
    if labels_count and saved is not None and graph.links is None and column < graph.num_splits:
        is_same = saved["count"] == graph.num_vertices and (
            has_run_dataset or has_run_edges or graph.describe_vertices(column)["labels"] == saved["labels"]
        )
        by_id = [graph.positions] if is_same else number_by_ids(graph, settings, loaded, run / LINKS)
        for numbering in by_id:
            _warn_of_training_vertices(graph, column, loaded, numbering, warn)
    for number, rows in find_embedding_rows(graph, schema, has_run_edges=has_run_edges).items():
        key = f"input.learned.{number}.values"
        if key in weights and not np.array_equal(rows, np.arange(len(weights[key]))):
            weights = weights | {key: weights[key][torch.from_numpy(rows)]}
    model = build_model(config, graph) if module is None else module
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise CheckpointError(
            f"the weights in {loaded.path} do not match "
            + (
                (
                    f"{graph.name} with {pluralize(graph.num_features, 'feature')} and "
                    f"{graph.vertices.label_description}: use the dataset of the run, or one with the "
                    "same widths; if a custom module was trained, pass it as model= in Python"
                )
                if module is None
                else f"{type(module).__name__}: pass a module with the same parameters as the trained one"
            )
        ) from None
    check_types(model, graph)
    check_edge_values(model, graph, sampler_uses_weights=config.sampler.reads_edge_weights)
    return TrainedRun(
        model=model.eval(),
        config=config,
        metrics=best["metrics"],
        graph=graph,
        weights=description,
        schema=schema,
        scratch=run if os.access(run, os.W_OK | os.X_OK) else None,
    )


def _saved_schema(
    checkpoint: Checkpoint, settings: Config, run: Path, *, has_run_dataset: bool
) -> RunSchema | None:
    """Return the schema of a checkpoint; for older checkpoints, derive it from the run's dataset."""
    saved = checkpoint.state.get("schema")
    if saved is not None:
        return RunSchema.from_dict(saved)
    if has_run_dataset or "graph" not in checkpoint.state:
        return None
    try:
        run_graph = opened_graph(settings, None, run / LINKS)
    except HyrtError:
        return None
    return None if run_graph.fingerprint.find_changes(checkpoint.state) else build_run_schema(run_graph)


def _check_scaling(
    checkpoint: Checkpoint, config: Config, run: Path, source: Any, *, has_run_dataset: bool
) -> None:
    """Raise CheckpointError if features of other data would be scaled with other numbers than in training."""
    if has_run_dataset or config.data.normalize != "standard":
        return
    if (
        isinstance(source, Graph)
        and "graph" in checkpoint.state
        and not source.fingerprint.find_changes(checkpoint.state)
    ):
        return
    raise CheckpointError(
        f"{checkpoint.path} was written by an earlier version, which did not store means "
        f"and deviations (data.normalize=standard), and the dataset of {run} has changed: "
        f"restore {config.data.source}, or train again"
    )


def _find_changes(graph: Graph, config: Config, checkpoint: Checkpoint) -> list[str]:
    """Return which of `labels`, `edges`, `held_out` and `features` have changed since the training."""
    state = checkpoint.state
    changes = graph.fingerprint.find_changes(state)
    vertices, sums = state.get("vertices"), state.get("row_sums")
    if vertices is not None and graph.links is None and not changes:
        found = graph.describe_vertices(config.data.split)["held_out"]
        changes += ["held_out"] * (found != vertices["held_out"])
    if sums is not None and state.get("schema") is not None and not graph.has_row_sums(sums):
        changes.append("features")
    return changes


def _warn_of_training_vertices(
    graph: Graph,
    column: int,
    checkpoint: Checkpoint,
    numbering: NDArray[Any] | None,
    warn: Callable[[str], None],
) -> None:
    """Warn if validation or test vertices of a graph were training vertices of the run.

    `numbering` is the current index of each original vertex of the run, or -1 if the graph lacks it.
    """
    saved = checkpoint.state["vertices"]
    trained = np.flatnonzero(np.unpackbits(saved["train"].numpy(), count=saved["count"]))
    trained = trained if numbering is None else numbering[trained]
    for name, word in (("val", "validation"), ("test", "test")):
        vertices = graph.split(name, column)
        count = int(np.isin(vertices, trained).sum())
        if count:
            warn(
                f"{graph.name}: {count:,} of {len(vertices):,} {word} vertices were training vertices of "
                f"this run, so the {word} metrics are too good: use the split and the weights of the same run"
            )


_KINDS = ("gat", "gcn", "gin", "graphsage")
_HETERO_KINDS = ("hgt", "rgat", "rgcn", "rsage")


def export_arguments(architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the plain module with the same parameters as a model.

    Raises UnsupportedModelError if there is no plain module of that kind.
    """
    arch = architecture
    if arch.kind not in (*_KINDS, *_HETERO_KINDS):
        raise UnsupportedModelError(
            f"model.kind={arch.kind or 'custom'} cannot be exported as a plain PyTorch "
            f"module: hyrt export supports only {', '.join((*_KINDS, *_HETERO_KINDS))}; use "
            "`hyrt infer` to write the scores of any run"
        )
    if arch.shape is not None:
        types = arch.shape.types
        return {
            "kind": arch.kind,
            "types": [list(entry) for entry in zip(types, arch.shape.counts, arch.shape.widths, strict=True)],
            "relations": [[types[source], name, types[end]] for source, name, end in arch.shape.relations],
            "hidden": arch.hidden,
            "num_classes": arch.num_classes,
            "layers": arch.layers,
            "heads": arch.heads,
            "norm": arch.norm,
            "residual": arch.residual,
            **arch.options,
        }
    return {
        "kind": arch.kind,
        "in_features": arch.in_features,
        "hidden": arch.hidden,
        "num_classes": arch.num_classes,
        "layers": arch.layers,
        "aggregate": arch.aggregate,
        "heads": arch.heads,
        "norm": arch.norm,
        "residual": arch.residual,
    }


def write_export(trained: TrainedRun, destination: Path) -> list[str]:
    """Write `weights.safetensors`, `arguments.json` and `model.py`; replace `destination` only on success.

    Returns notes on numerical differences, one per line. Raises UnsupportedModelError if the model has no
    plain module, and DataWriteError if the folder cannot be written. `destination` must be absolute.
    """
    model, config = trained.model, trained.config
    assert isinstance(model, GNN)
    if isinstance(model, LinkGNN):
        raise UnsupportedModelError(
            f"links.decoder={config.links.decoder} cannot be exported as a plain PyTorch "
            "module: hyrt export supports only links.decoder=dot; use `hyrt infer --links` "
            "to write the scores of any run"
        )
    arguments = export_arguments(model.architecture)
    schema = trained.schema
    facts = {
        "model": arguments,
        "features": _features(schema, config.data.feature_dtype),
        "classes": schema.classes,
        "labels": "links" if schema.predicts_links else schema.labels,
        "trained_on": trained.graph.name,
        "weights": trained.weights,
        "metrics": {split: dict(values) for split, values in trained.metrics.items()},
    }
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    with atomic_output(destination, "export") as (result, _):
        result.mkdir()
        save_file(weights, result / "weights.safetensors")
        (result / "arguments.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        module = plain_gnn if model.architecture.shape is None else plain_hetero_gnn
        assert module.__file__ is not None
        source = _with_features(Path(module.__file__).read_text(encoding="utf-8"))
        (result / "model.py").write_text(source, encoding="utf-8")
    notes = []
    if arguments.get(EDGE_FEATURES):
        notes.append(
            "attention used edge features (or edge weights) in training: also pass edge_attr to the module"
        )
    elif trained.graph.topology.edge_weights is not None:
        notes.append("edges had weights in training: also pass edge_weight to the module")
    for name, table in schema.tables.items():
        unknown = [step.kind for step in table.scaling if not step.is_known]
        if unknown:
            type_text = f" of type {name}" if name else ""
            notes.append(
                f"features{type_text} were scaled by {unknown[0]} before training: pass rows "
                "scaled in the same way"
            )
    if config.data.rounding == "stochastic":
        notes.append(
            "features were rounded at random in training (data.rounding=stochastic), but to "
            "the nearest code in this module"
        )
    if model.architecture.low_precision:
        notes.append(
            "products were rounded to bfloat16 in training (train.precision=bf16), but not in this module"
        )
    return notes


def _features(schema: RunSchema, rows: str) -> dict[str, dict[str, Any]]:
    """Return the arguments of `PlainFeatures` by vertex type."""
    arguments = {}
    for name, table in schema.tables.items():
        if table.width is None:
            continue
        saved = table.to_dict()
        saved["scaling"] = [step.to_dict() for step in table.scaling if step.is_known]
        arguments[name] = {key: saved[key] for key in ("width", "columns", "scaling")}
        if rows not in ("stored", "auto"):
            arguments[name] |= {"rows": rows, "column_scales": saved["column_scales"]}
    return arguments


def _with_features(source: str) -> str:
    """Replace the import of `PlainFeatures` in a plain module by its source text."""
    assert plain_features.__file__ is not None
    text = Path(plain_features.__file__).read_text(encoding="utf-8")
    line = f"from {plain_features.__name__} import PlainFeatures\n"
    assert line in source, "the plain module imports its features from there"
    body = text[text.index("class PlainFeatures") :]
    combined = source.replace(line, f"\n{body}")
    imports = "from collections.abc import Mapping, Sequence\n"
    return combined if imports in combined else combined.replace("import json\n", f"import json\n{imports}")
