"""Writer of the export folder: weights, arguments, and a standalone module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hyrt.errors import UnsupportedModelError
from hyrt.graph.formats.atomic_output import atomic_output
from hyrt.graph.run_schema import RunSchema
from hyrt.nn.architecture import Architecture
from hyrt.nn.link_gnn import LinkGNN
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import EDGE_FEATURES
from hyrt.report.export import plain_features, plain_gnn
from hyrt.report.export import plain_hetero_gnn as plain_typed
from hyrt.report.records.trained_run import TrainedRun

_KINDS = ("gat", "gcn", "gin", "graphsage")
_HETERO_KINDS = ("hgt", "rgat", "rgcn", "rsage")


def export_arguments(architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the plain module with the same parameters as a model.

    Raises UnsupportedModelError if there is no plain module of that kind.
    """
    arch = architecture
    if arch.kind not in (*_KINDS, *_HETERO_KINDS):
        raise UnsupportedModelError(
            f"model.kind={arch.kind or 'of your own'} has no plain PyTorch module: hyrt export writes "
            f"those of {', '.join((*_KINDS, *_HETERO_KINDS))}; `hyrt infer` writes the scores of any"
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
            f"links.decoder={config.links.decoder} has no plain PyTorch module: hyrt export writes models "
            "with links.decoder=dot; `hyrt infer --links` writes the scores of any"
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
        module = plain_gnn if model.architecture.shape is None else plain_typed
        assert module.__file__ is not None
        source = _with_features(Path(module.__file__).read_text(encoding="utf-8"))
        (result / "model.py").write_text(source, encoding="utf-8")
    notes = []
    if arguments.get(EDGE_FEATURES):
        notes.append("attention looked at features (or weights) of edges: give the module edge_attr, too")
    elif trained.graph.topology.edge_weights is not None:
        notes.append("edges had weights: give the module edge_weight, too")
    for name, table in schema.tables.items():
        unknown = [step.kind for step in table.scaling if not step.is_known]
        if unknown:
            type_text = f" of type {name}" if name else ""
            notes.append(f"features{type_text} were scaled by {unknown[0]} before: give rows that are, too")
    if config.data.rounding == "stochastic":
        notes.append(
            "features were rounded at random (data.rounding=stochastic), and are to the nearest here"
        )
    if model.architecture.low_precision:
        notes.append("products were rounded to bfloat16 (train.precision=bf16), and are not here")
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
    assert line in source, "the plain module takes its features from there"
    body = text[text.index("class PlainFeatures") :]
    combined = source.replace(line, f"\n{body}")
    imports = "from collections.abc import Mapping, Sequence\n"
    return combined if imports in combined else combined.replace("import json\n", f"import json\n{imports}")
