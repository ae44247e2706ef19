"""`hyrt data`: inspect, import, convert and generate datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyrt.cli.options import AsJson, Command, Force, Group

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph


data_app = typer.Typer(
    cls=Group, help="Inspect, import, convert and generate datasets.", no_args_is_help=True
)

_SOURCE_HELP = (
    "The dataset: a .npz file, a folder of .npy files or of parts, synthetic:PRESET[,key=value,...], "
    "ogbn-NAME, mag240m, mag240m:typed, a folder downloaded by ogb, or a file of dgl.save_graphs."
)
_SPEC_HELP = (
    "The graph to generate: PRESET[,key=value,...], where PRESET is community, tiny, "
    "products-s, papers-s or hetero, and the keys are vertices, edges, features, "
    "classes, train, val, test, homophily, signal, dtype and seed. Counts may have "
    "the suffix k, M or G."
)
_DEST_HELP = "The .npz file or the folder to write. A folder is memory-mapped when it is opened."


@data_app.command(cls=Command)
def info(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    check: Annotated[
        bool, typer.Option("--check", help="Check all data, including memory-mapped features above 1 GiB.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Also list the arrays that stay in memory when this kind of model is trained on "
            "the full graph; for a heterogeneous graph, only those that stay in memory in "
            "any training.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataset and describe it.

    \b
    Examples:
      hyrt data info cora.npz --check
      hyrt data info cora.npz --memory gcn
    """  # noqa: D301
    from hyrt.graph import open_graph
    from hyrt.graph.info import format_summary, summarize_graph
    from hyrt.graph.partition.manifest import format_metrics, is_partition, partition_metrics, read_manifest

    graph = open_graph(source, check=check)
    facts = summarize_graph(graph)
    lines = format_summary(facts)
    if is_partition(folder := Path(source).expanduser()):
        facts["partition"] = partition_metrics(read_manifest(folder))
        lines += ["", *format_metrics(facts["partition"])]
    if memory is not None:
        key, memory_lines = _memory(graph, memory)
        facts |= key
        lines += ["", *memory_lines]
    typer.echo(json.dumps(facts) if as_json else "\n".join(lines))


def _memory(graph: Graph, kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return the memory that training needs, as a JSON entry and as lines of text."""
    if graph.types is not None:
        from hyrt.predict.memory_needs import hetero_memory_facts, hetero_memory_lines

        facts = hetero_memory_facts(graph, kind)
        return {"typed_memory": facts}, hetero_memory_lines(facts)
    from hyrt.predict.memory_needs import memory_facts, memory_lines

    facts = memory_facts(graph, kind)
    return {"full_graph_memory": facts}, memory_lines(facts)


@data_app.command(cls=Command)
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)],
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help=_DEST_HELP)],
    feature_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|float16|bfloat16|int8|int8-columns",
            help="Store dense features in another format; int8 has a scale for each row, int8-columns one "
            "for each column.",
        ),
    ] = None,
    rounding: Annotated[
        str,
        typer.Option(metavar="nearest|stochastic", help="How values are rounded to int8."),
    ] = "nearest",
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The seed of stochastic rounding; 0 by default.")
    ] = None,
    normalize: Annotated[
        str, typer.Option(metavar="METHOD", help="Scale the features: none, row, length, standard or auto.")
    ] = "none",
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort the rows of the graph and of sparse features.")
    ] = False,
    unique: Annotated[
        bool,
        typer.Option(
            "--unique",
            help="Merge duplicate edges; in sparse rows, add up the values of duplicate columns.",
        ),
    ] = False,
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse",
            help="Add the reverse of each relation of a heterogeneous graph, named rev_...",
        ),
    ] = False,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="community|degree|rcm",
            help="Renumber the vertices so that rows that are gathered together are close "
            "together in memory. The original numbers are saved.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Convert a dataset to a .npz file or a folder.

    The data is streamed; an upper bound on memory is printed first.

    \b
    Examples:
      hyrt data convert coauthor_cs.npz cs --feature-dtype int8
      hyrt data convert ogbn-products products --normalize standard
      hyrt data convert unsorted.npz mine.npz --sort --unique
      hyrt data convert ogbn-products products --order community
      hyrt data convert ogbn-mag mag --reverse
    """  # noqa: D301
    _write(
        source,
        destination,
        force=force,
        feature_dtype=feature_dtype,
        rounding=rounding,
        seed=seed,
        normalize=normalize,
        sort=sort,
        unique=unique,
        reverse=reverse,
        order=order,
    )


@data_app.command("import", cls=Command)
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="CSV (also .csv.gz) or Parquet files with edges and vertices, or folders of such files.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DESTINATION", help=_DEST_HELP)
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A YAML file that defines the meaning of each column; by default, it is guessed "
            "from the column names.",
        ),
    ] = None,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the guessed schema, which you can edit, and exit.")
    ] = False,
    force: Force = False,
) -> None:
    """Create a dataset from edge lists and vertex tables.

    The meaning of columns is guessed from these names, and the guess is printed: src, source or from; dst,
    target or to; weight; id; label or y; split, or train, val and test. Other numeric columns of a vertex
    table are features. The data is streamed; an upper bound on memory is printed first. All wrong rows
    are counted and the first ones are listed; if there are any, nothing is written.

    \b
    Examples:
      hyrt data import edges.csv nodes.parquet -o mine
      hyrt data import --print-schema edges.csv nodes.csv > schema.yaml
      hyrt data import edges.csv nodes.csv --schema schema.yaml -o mine.npz
    """  # noqa: D301
    from hyrt.errors import ConfigError, DataError, one_line
    from hyrt.graph.tables.table_files import require_pyarrow

    require_pyarrow()
    from hyrt.graph.tables.import_tables import ImportJob, import_tables
    from hyrt.graph.tables.infer_schema import draft_schema, infer_schema
    from hyrt.graph.tables.schema import ImportSchema
    from hyrt.report.printed_lines import quote_path

    if print_schema:
        if schema is not None:
            raise ConfigError("--print-schema cannot be combined with --schema: remove one of them")
        from hyrt.config.commented_yaml import schema_text

        try:
            schema_start, comments = infer_schema(files).schema, []
        except DataError as error:
            # Let the user complete the printed schema, because parts of it cannot be guessed.
            incomplete = draft_schema(files, f"Correct this schema: {one_line(str(error))}")
            schema_start, comments = incomplete.schema, incomplete.lines
        typer.echo("".join(f"# {line}\n" for line in comments) + schema_text(schema_start), nl=False)
        return
    if output is None:
        raise ConfigError("no destination is specified: add -o DESTINATION")
    if schema is not None:
        from hyrt.config.commented_yaml import read_schema

        tables = read_schema(schema)
    else:
        guess = infer_schema(files)
        typer.echo("\n".join(guess.lines))
        tables = guess.schema
    if isinstance(tables, ImportSchema):
        import_tables(ImportJob(files, output, tables, force), typer.echo)
    else:
        from hyrt.graph.tables.import_hetero import import_hetero_tables

        import_hetero_tables(ImportJob(files, output, tables, force), typer.echo)
    typer.echo(f"wrote {quote_path(output)}")


@data_app.command(cls=Command)
def generate(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help=_SPEC_HELP)],
    destination: Annotated[Path, typer.Argument(metavar="DESTINATION", help=_DEST_HELP)],
    force: Force = False,
) -> None:
    """Generate a graph.

    The same specification always generates the same graph, on every machine.

    \b
    Examples:
      hyrt data generate community community.npz
      hyrt data generate papers-s,vertices=5M,dtype=float16 big
    """  # noqa: D301
    from hyrt.graph.source import SYNTHETIC

    _write(spec if spec.startswith(SYNTHETIC) else f"{SYNTHETIC}{spec}", destination, force=force)


def _write(source: str, destination: Path, **options: Any) -> None:
    from hyrt.graph.formats.convert import Conversion
    from hyrt.graph.formats.convert import convert as write
    from hyrt.report.printed_lines import quote_path

    write(Conversion(source, destination, **options), typer.echo)
    typer.echo(f"wrote {quote_path(destination)}")
