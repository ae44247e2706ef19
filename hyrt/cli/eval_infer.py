"""`hyrt eval` and `hyrt infer`: apply the weights of a run."""

from __future__ import annotations

import json
import os
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from hyrt.cli.options import AsJson, Force

if TYPE_CHECKING:
    from hyrt.report.trained_run import TrainedRun

_RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")]
_Data = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE", help="A dataset with the same features. By default, the dataset of the run."
    ),
]
_Checkpoint = Annotated[
    str, typer.Option("--checkpoint", metavar="best|newest|FILE", help="The checkpoint whose weights to use.")
]


_Split = Annotated[
    int | None,
    typer.Option(
        "--split",
        metavar="N",
        min=0,
        help="The index of the split, from 0, for data with several alternative splits. By default, as in "
        "the run.",
    ),
]


class EvaluationMode(StrEnum):
    """Selection of neighbours in an evaluation."""

    full = "full"
    sampled = "sampled"


class InferOutput(StrEnum):
    """Output of `hyrt infer` per vertex."""

    scores = "scores"
    classes = "classes"
    embeddings = "embeddings"


def evaluate(
    run: _RunFolder,
    data: _Data = None,
    split: _Split = None,
    mode: Annotated[
        EvaluationMode | None,
        typer.Option(
            help="Use all neighbours (full) or the training fan-outs (sampled). By default, as in the run."
        ),
    ] = None,
    checkpoint: _Checkpoint = "best",
    as_json: AsJson = False,
) -> None:
    """Evaluate the weights of a run.

    This prints the metrics on the validation and test vertices, or links.

    \b
    Examples:
      hyrt eval runs/2026-11-21-101502-graphsage-community
      hyrt eval runs/mine --data newer.npz --checkpoint newest --json
      hyrt eval runs/mine --data other --split 2
    """  # noqa: D301
    from hyrt.config.command_line import option_overrides
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    from hyrt.errors import ConfigError, DataError
    from hyrt.formatting import format_sig3
    from hyrt.graph.labels import is_labelled
    from hyrt.inference.evaluate import Evaluator
    from hyrt.report.progress_text import metric_name
    from hyrt.report.trained_run import open_trained_run
    from hyrt.training.setup import assign_threads, evaluation_workers

    # All metrics are shown, and the metric that selects the best epoch may not exist for other data.
    overrides = option_overrides(
        data__source=data, data__split=split, evaluate__mode=mode, train__metric="auto"
    )
    trained = open_trained_run(run, overrides, checkpoint, _warn)
    graph = trained.graph
    if graph.links is None:
        _check_split(trained, split)
    elif split is not None:
        raise ConfigError("--split has no effect, because the run predicts links: remove it")
    if graph.links is None and not is_labelled(graph.labels).any():
        raise DataError(
            f"{graph.name} has no labels that can be compared with the run's outputs "
            f"({trained.schema.label_description}): add labels, or use hyrt infer for scores"
        )
    with closing(evaluation_workers(assign_threads(trained.config))) as workers:
        evaluator = Evaluator(trained.config, graph, trained.scratch)
        metrics = evaluator.evaluate(trained.model, workers)
    if evaluator.not_finite is not None:
        _warn(evaluator.not_finite)
    if as_json:
        facts = {
            "run": str(run),
            "data": trained.config.data.source,
            "weights": trained.weights,
            "mode": trained.config.evaluate.mode,
            "metrics": metrics,
        }
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{graph.name} · weights of {trained.weights} · {trained.config.evaluate.mode}")
    for name, values in metrics.items():
        typer.echo(f"{name:<6}" + "  ".join(f"{metric_name(k)} {format_sig3(v)}" for k, v in values.items()))
    targets = "vertices" if graph.links is None else "links"
    where = f" in split {trained.config.data.split}" if graph.links is None and graph.num_splits > 1 else ""
    for name, word in (("val", "validation"), ("test", "test")):
        if name not in metrics:
            typer.echo(f"{name:<6}the dataset has no {word} {targets}{where}")


def infer(
    run: _RunFolder,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.npy|FILE.csv", help="The file to write.")
    ],
    data: _Data = None,
    output_kind: Annotated[
        InferOutput | None,
        typer.Option(
            "--output-kind",
            help="What to write: scores, [n, classes] float32, the default; classes, [n] int32, "
            "or [n, K] int8 of 0 and 1; or embeddings, the input of the last layer, [n, "
            "hidden] float32. A run that predicts links has only embeddings, the output of "
            "its model.",
        ),
    ] = None,
    vertices: Annotated[
        str | None,
        typer.Option(
            metavar="all|train|val|test|FILE.npy",
            help="The vertices to compute, in the order of the output rows. By default, all.",
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            metavar="PAIRS.npy|PAIRS.csv",
            help="For a run that predicts links, write the scores of these vertex pairs. Higher "
            "scores mean likelier links; the sigmoid of a score is a probability. The pairs "
            "are [n, 2] vertex numbers, or a table (.csv, .tsv, .txt) with ids in the columns "
            "source and target, in columns named after the vertex types, or in its first two "
            "columns.",
        ),
    ] = None,
    split: _Split = None,
    checkpoint: _Checkpoint = "best",
    force: Force = False,
) -> None:
    """Compute scores, classes or embeddings of vertices or links.

    They are computed from all neighbours and written to a .npy file or a .csv table. If the dataset was
    imported with vertex ids and class names, the table contains them.

    \b
    Examples:
      hyrt infer runs/mine --output scores.npy
      hyrt infer runs/mine -o classes.csv --output-kind classes --vertices test
      hyrt infer runs/mine -o new.npy --data newer.npz --vertices wanted.npy
      hyrt infer runs/mine -o scores.npy --links pairs.npy
      hyrt infer runs/mine -o scores.csv --links pairs.csv
    """  # noqa: D301
    from hyrt.config.command_line import option_overrides
    from hyrt.runtime.files import resolve_output_file
    from hyrt.runtime.process_setup import prepare_process

    file = resolve_output_file(output, replace=force, suffix=".npy", alternative_suffix=".csv")
    as_table = output.suffix == ".csv"
    prepare_process()
    from hyrt.errors import ConfigError, DataError
    from hyrt.graph.formats.npy import map_npy
    from hyrt.graph.tables.table_files import is_text_table
    from hyrt.inference.output_links import read_named_pairs, read_pairs, write_link_scores, write_named_pairs
    from hyrt.inference.output_rows import select_vertices, write_named_rows, write_rows
    from hyrt.nn.link_gnn import LinkGNN
    from hyrt.nn.model import GNN
    from hyrt.objective.link_prediction import DECODERS
    from hyrt.report.printed_lines import quote_path
    from hyrt.report.run_process import explain_write_errors
    from hyrt.report.trained_run import open_trained_run
    from hyrt.training.setup import assign_threads, evaluation_workers

    # Only the vertices of a split are used, and no labels.
    trained = open_trained_run(
        run, option_overrides(data__source=data, data__split=split), checkpoint, _warn, labels_count=False
    )
    graph, model = trained.graph, cast(GNN, trained.model)
    memory_bytes = int(trained.config.evaluate.memory_gib * 2**30)
    _check_output(output_kind, vertices, links, predicts_links=graph.links is not None)
    if vertices in ("train", "val", "test"):
        _check_split(trained, split)
    elif split is not None:
        raise ConfigError("--split has no effect without --vertices train, val or test: remove it")
    pairs, pair_names = None, None
    if links is not None and is_text_table(links):
        pairs, pair_names = read_named_pairs(links, graph, _note)
    elif links is not None:
        pairs = read_pairs(links, graph)
    chosen = select_vertices(graph, vertices or "all", trained.config.data.split)
    if vertices in ("train", "val", "test") and not len(chosen):
        raise DataError(
            f"--vertices {vertices} selects nothing, because {graph.name} has no such "
            "vertices: use --vertices all"
        )
    if as_table and vertices is None and graph.types is not None and graph.links is None:
        if output_kind is not InferOutput.embeddings:
            # Vertices of other types have no labels, so their scores are meaningless.
            chosen = chosen[
                graph.types.vertex_type_indices(chosen) == graph.types.type_index(graph.types.target)
            ]
    closing_workers = closing(evaluation_workers(assign_threads(trained.config)))
    target = file.with_name(f".{file.name}.{os.getpid()}.npy") if as_table else file
    with closing_workers as workers, explain_write_errors(output, "Free space, or choose another --output."):
        if pairs is not None:
            score = DECODERS[trained.config.links.decoder].score
            bound = {"memory_bytes": memory_bytes}
            try:
                count = write_link_scores(target, model, graph, pairs, score, workers, **bound)
                if as_table:
                    ids = graph.vertices.vertex_ids
                    names = pair_names or (pairs if ids is None else ids[pairs]).tolist()
                    write_named_pairs(file, names, map_npy(target))
            finally:
                if as_table:
                    target.unlink(missing_ok=True)
            shape: tuple[int, ...] = (count,)
            output_name = "link scores"
        else:
            # The output of a link prediction model is its embeddings.
            output_name = (
                "embeddings" if graph.links is not None else (output_kind or InferOutput.scores).value
            )
            model = model.embedding_model() if isinstance(model, LinkGNN) else model
            kind = InferOutput.scores if graph.links is not None else output_kind or InferOutput.scores
            try:
                shape = write_rows(
                    target, model, graph, chosen, kind.value, workers, memory_bytes=memory_bytes
                )
                if as_table:
                    classes = trained.schema.classes
                    write_named_rows(file, map_npy(target), chosen, graph, classes, kind.value)
            finally:
                if as_table:
                    target.unlink(missing_ok=True)
    size = " x ".join(f"{n:,}" for n in shape)
    typer.echo(f"wrote {quote_path(output)}: {output_name} {size} · weights of {trained.weights}")


def _check_split(trained: TrainedRun, split: int | None) -> None:
    """Refuse an option --split, or a split of the run, that the data do not have."""
    from hyrt.errors import DataError
    from hyrt.formatting import pluralize

    graph, number = trained.graph, trained.config.data.split
    if number >= graph.num_splits:
        of_run = "" if split is not None else ", the split of the run"
        known = pluralize(graph.num_splits, "split")
        raise DataError(f"{graph.name} has no split {number}{of_run}, only {known}: set --split, from 0")


def _check_output(
    output_kind: InferOutput | None, vertices: str | None, links: Path | None, *, predicts_links: bool
) -> None:
    """Reject outputs that the run cannot produce."""
    from hyrt.errors import ConfigError

    if links is None:
        if predicts_links and output_kind in (InferOutput.scores, InferOutput.classes):
            raise ConfigError(
                f"--output-kind {output_kind} is not available, because the run predicts links: "
                "use --links PAIRS.npy for the scores of vertex pairs, or --output-kind "
                "embeddings"
            )
        return
    if not predicts_links:
        raise ConfigError(
            "--links needs a run that predicts links, but this run predicts vertices: train "
            "with train.objective=links"
        )
    for option, value in (("--output-kind", output_kind), ("--vertices", vertices)):
        if value is not None:
            raise ConfigError(f"--links cannot be combined with {option}: remove one of them")


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)
