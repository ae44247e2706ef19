"""`hyrt fpga`: choose a trainer for an FPGA card and write its build files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import AsJson, Command, Data, Group, Model, Settings, Workload, load_workload_option

if TYPE_CHECKING:
    from hyrt_hls.build_report import Build
    from hyrt_hls.design_space import Candidate
    from hyrt_hls.fpga_part import FpgaPart
    from hyrt_perfmodel.fpga_design import FpgaDesign
    from hyrt_perfmodel.workload import TrainingWorkload

fpga_app = typer.Typer(
    cls=Group,
    help="Choose a trainer for an FPGA card and write its build files.",
    no_args_is_help=True,
)

_Part = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The card: u250, u200, u280, u50, or a .yaml file with the resources that its "
        "shell leaves free.",
    ),
]
_FIFO_DEPTH = 32


@fpga_app.command(cls=Command)
def explore(
    arguments: Settings = None,
    part: _Part = "u250",
    data: Data = None,
    model: Model = None,
    fanout: Annotated[
        str | None, typer.Option(metavar="N,N", help="The fan-out of each layer, such as 25,10.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(metavar="WIDTH", help="The width of hidden layers.")] = None,
    batch: Annotated[
        int | None, typer.Option(metavar="TARGETS", help="The number of targets of a step on this card.")
    ] = None,
    workload: Workload = None,
    reports: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A build folder with reports (*_csynth.xml). They are compared with the "
            "estimates, and their clock and intervals are used.",
        ),
    ] = None,
    fifo_depth: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The depth of each queue of the network. By default 32, or the depth in the build.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best trainers that fit a card.

    This searches over n, the rows and columns of the array, and the arena, and prints the designs that no
    other design beats in both time and resources. Nothing is built. A card trains graphsage and gcn.

    \b
    Examples:
      hyrt fpga explore --part u250 --model graphsage --data ogbn-products --fanout 25,10 --hidden 256
      hyrt fpga explore --part u50 --workload w.yaml --json
    """  # noqa: D301
    from dataclasses import replace

    from hyrt_hls.design_space import explore_designs as search
    from hyrt_hls.fpga_part import load_part

    from hyrt.errors import convert_number_errors
    from hyrt.report.predict_table import ExplorationResult, exploration_json, exploration_lines
    from hyrt.report.printed_lines import print_wrapped

    options = {"data": data, "model": model, "fanout": fanout, "hidden": hidden, "batch": batch}
    with convert_number_errors():
        card = load_part(part)
        base, build = _base_design(card, fifo_depth, reports)
        work, assumptions = _work(arguments or [], options, workload)
        result = ExplorationResult(
            part=card,
            work=work,
            front=search(card, work.at, work.batch_size, base),
            # This is the design in Table IV of the paper.
            paper=_evaluated(card, work, replace(base, pes=8, mac_rows=32, mac_cols=64), card.arena_words),
            base=base,
            build=build,
            built=None if build is None else _evaluated(card, work, base, build.arena_words),
            assumptions=assumptions,
        )
    if as_json:
        import json

        typer.echo(json.dumps(exploration_json(result)))
        return
    print_wrapped(exploration_lines(result))


@fpga_app.command("build-files", cls=Command)
def build_files(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to write, which must be new or empty.")
    ],
    part: _Part = "u250",
    pes: Annotated[
        int | None, typer.Option(metavar="N", help="The number n of scatter and gather units.")
    ] = None,
    macs: Annotated[
        str | None, typer.Option(metavar="RxC", help="The rows and columns of the array, such as 32x64.")
    ] = None,
    arena_words: Annotated[
        int | None, typer.Option(metavar="N", help="The number of words of 16 floats in each bank.")
    ] = None,
    fifo_depth: Annotated[
        int, typer.Option(metavar="N", help="The depth of each queue of the network.")
    ] = _FIFO_DEPTH,
    units: Annotated[int, typer.Option(metavar="N", help="The number of trainers on the card.")] = 1,
    clock_mhz: Annotated[int, typer.Option(metavar="MHZ", help="The clock of the kernel.")] = 300,
) -> None:
    """Write the files for building a trainer with Vitis.

    The folder contains the kernels, a link configuration and a Makefile. A design that does not fit the card
    is an error. docs/fpga.md explains how to build and run it.

    \b
    Example:
      hyrt fpga build-files u250 --part u250 --pes 8 --macs 32x64
    """  # noqa: D301
    from dataclasses import replace

    from hyrt_hls.build_files import build_warnings, write_build_files
    from hyrt_hls.fpga_part import load_part

    from hyrt.errors import convert_number_errors
    from hyrt.report.predict_table import resource_line
    from hyrt.report.printed_lines import print_wrapped, quote_path

    with convert_number_errors():
        card = load_part(part)
        design = replace(_assumed_design(card, fifo_depth), clock_hz=clock_mhz * 1e6)
        if pes is not None:
            design = replace(design, pes=pes)
        if macs is not None:
            rows, cols = _array(macs)
            design = replace(design, mac_rows=rows, mac_cols=cols)
        words = card.arena_words if arena_words is None else arena_words
        needs = write_build_files(folder, card, design, words, units=units)
    for doubt in build_warnings(card, design):
        typer.echo(f"warning: {doubt}", err=True)
    command = f"make -C {quote_path(folder)} TARGET=hw_emu"
    print_wrapped([resource_line(card, needs), f"wrote {quote_path(folder)}; with Vitis, run {command}"])


def _array(text: str) -> tuple[int, int]:
    rows, _, cols = text.partition("x")
    try:
        return int(rows), int(cols)
    except ValueError:
        raise ValueError(f"--macs {text} must be rows and columns, such as 32x64") from None


def _assumed_design(part: FpgaPart, fifo_depth: int) -> FpgaDesign:
    from hyrt_perfmodel.fpga_design import FpgaDesign

    return FpgaDesign(
        pes=part.pes,
        mac_rows=part.mac_rows,
        mac_cols=part.mac_cols,
        fifo_depth=fifo_depth,
        ddr_bytes_per_s=part.bank_bytes_per_s,
    )


def _base_design(
    part: FpgaPart, fifo_depth: int | None, reports: Path | None
) -> tuple[FpgaDesign, Build | None]:
    """Return the fixed part of the design, which is assumed or read from the reports of a build."""
    if reports is None:
        return _assumed_design(part, _FIFO_DEPTH if fifo_depth is None else fifo_depth), None
    from hyrt_hls.build_report import check_fifo_depth, design_from_build, read_build

    build = read_build(reports, part)
    check_fifo_depth(build, fifo_depth)
    return design_from_build(build, part), build


def _work(
    arguments: Sequence[str], options: Mapping[str, str | int | None], workload: Path | None
) -> tuple[TrainingWorkload, list[str]]:
    """Return the workload of a step on the card, and the assumptions about it."""
    if workload is not None:
        return load_workload_option(workload, arguments, options), []
    from hyrt.config.command_line import new_config, option_overrides, split_arguments
    from hyrt.errors import ConfigError
    from hyrt.predict.predict_platform import unsupported_reason
    from hyrt.predict.workload import configured_workload, workload_assumptions

    file, overrides = split_arguments(arguments)
    fanout = None if options["fanout"] is None else str(options["fanout"]).split(",")
    chosen = option_overrides(
        data__source=options["data"],
        data__batch_size=options["batch"],
        model__kind=options["model"],
        model__hidden=options["hidden"],
        model__layers=None if fanout is None else len(fanout),
        sampler__fanout=fanout,
    )
    config = new_config(file, [*chosen, *overrides])
    if reason := unsupported_reason(config):
        raise ConfigError(reason)
    work, assumed = configured_workload(config), workload_assumptions(config)
    step = work.at(1.0)
    if step.sparse is not None:
        assumed.append(
            f"{config.data.source} has sparse features: the model assumes that the card "
            f"receives dense rows of {step.features[0]:,} float32 values"
        )
    return work, assumed


def _evaluated(
    part: FpgaPart, work: TrainingWorkload, design: FpgaDesign, arena_words: int
) -> Candidate | str:
    """Evaluate a design on the card. If it does not fit, return the reason as text."""
    from hyrt_hls.design_space import evaluate_design

    try:
        return evaluate_design(part, work.at, work.batch_size, design, arena_words)
    except ValueError as error:
        return str(error)
