"""`hyrt partition`: divide a graph into parts for several machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from hyrt.cli.options import AsJson, Force


def partition(
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="The dataset: a .npz file, a folder of .npy files, or a name such as ogbn-products.",
        ),
    ],
    parts: Annotated[
        int, typer.Option(metavar="N", help="The number of parts, one for each rank: 1 to 1024.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")],
    method: Annotated[
        str,
        typer.Option(
            metavar="random|block|metis|volume",
            help="Which vertices share a part: random ones, consecutive ones, ones with many "
            "edges between them (metis), or ones that minimise the rows that the busiest "
            "part sends and receives (volume). metis and volume need hyrt[partition].",
        ),
    ] = "metis",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The random seed.")] = 0,
    topology: Annotated[
        Literal["replicated", "split"],
        typer.Option(
            metavar="replicated|split",
            help="Whether every rank reads all edges (replicated), or only those into the vertices of its "
            "part (split).",
        ),
    ] = "replicated",
    normalize: Annotated[
        str, typer.Option(metavar="METHOD", help="Scale the features: none, row, length, standard or auto.")
    ] = "none",
    imbalance: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="How far the weight of a part may exceed the mean: 0.1 allows 10 % more. By "
            "default 0.03 for metis and 0.05 for volume, where the weight of a vertex is 1 "
            "plus the number of its in-edges; metis also balances training vertices.",
        ),
    ] = None,
    max_vertices: Annotated[
        int | None,
        typer.Option(
            "--max-vertices",
            metavar="N",
            min=1,
            help="The maximum number of vertices in a part, so that its features fit into a "
            "rank's memory (not for metis). Parts may then weigh more than --imbalance "
            "allows.",
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Partition a graph, with one part for each rank of a run.

    The data is streamed; an upper bound on memory is printed first.

    \b
    Examples:
      hyrt partition --data ogbn-products --parts 4 -o parts
      hyrt partition --data cora.npz --parts 2 --method random --seed 1 -o halves
    """  # noqa: D301
    from hyrt.graph.partition.manifest import format_metrics, partition_metrics
    from hyrt.graph.partition.write_parts import PartitionJob, write_parts
    from hyrt.report.printed_lines import quote_path

    job = PartitionJob(data, output, parts, method, seed, topology, normalize, imbalance, max_vertices, force)
    manifest = write_parts(job, lambda line: typer.echo(line, err=as_json))
    figures = partition_metrics(manifest)
    if as_json:
        typer.echo(json.dumps(figures))
        return
    typer.echo("\n".join([*format_metrics(figures), "", f"wrote {quote_path(output)}"]))
