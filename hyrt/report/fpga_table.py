"""Text output of an FPGA design exploration: the Pareto front, the paper's design, and the assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hyrt_hls.build_report import Build, compare_estimates, unmodelled_intervals
from hyrt_hls.design_space import PAPER_DESIGN, Candidate
from hyrt_hls.fpga_part import FpgaPart
from hyrt_hls.resources import STREAM_BITS, Resources, widest_stream_bits
from hyrt_perfmodel.fpga_cycles import TaskShape, task_cycles
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.workload import TrainingWorkload

_HEAD = "  n   m = rows x cols  arena words  tasks   DSP   LUT  BRAM  URAM   ms/step  MTEPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationResult:
    """Result of exploring the designs for the FPGA `part`."""

    part: FpgaPart
    work: TrainingWorkload
    front: Sequence[Candidate]
    """Pareto front, the cheapest design first."""
    paper: Candidate | str
    """Design of the paper's Table IV, or why it does not fit."""
    base: FpgaDesign
    """Design parameters that were not varied."""
    build: Build | None
    built: Candidate | str | None
    """Design of the build in `build`, or why it cannot be estimated; None without a build."""
    assumptions: Sequence[str]
    """Assumptions on the workload."""


def exploration_lines(result: ExplorationResult) -> list[str]:
    """Return the output of `hyrt fpga explore` as lines."""
    part, work, base = result.part, result.work, result.base
    sizes = work.at(work.batch_size)
    edges = sizes.num_edges
    lines = [
        f"{part.name} · {work.batch_size:,} targets · vertices {_format_counts(sizes.vertices)} · edges "
        f"{_format_counts(sizes.edges)} · widths {', '.join(map(str, sizes.features))}",
        _HEAD,
        *(
            _candidate_row(candidate, part, edges)
            + (
                "  ◀ Table IV's n and m"
                if (candidate.design.pes, candidate.design.macs) == PAPER_DESIGN
                else ""
            )
            for candidate in result.front
        ),
    ]
    for name, candidate_or_reason in (
        (f"Table IV's design (n = {PAPER_DESIGN[0]}, m = {PAPER_DESIGN[1]})", result.paper),
        ("the build", result.built),
    ):
        if isinstance(candidate_or_reason, str):
            lines.append(f"{name}: {candidate_or_reason}")
        elif candidate_or_reason is not None and candidate_or_reason not in result.front:
            lines.append(f"{_candidate_row(candidate_or_reason, part, edges)}  {name}, not on the front")
    shown = [
        candidate
        for candidate in (*result.front, result.paper, result.built)
        if isinstance(candidate, Candidate)
    ]
    if any(_is_wide(candidate.design) for candidate in shown):
        lines.append(
            f"! a stream is wider than {STREAM_BITS:,} bits (512 n, or 32 per row or column), which "
            "Vitis HLS is reported to refuse: try v++ -c first"
        )
    lines.append(
        "ms/step is the card's time for all tasks of a step; hyrt predict includes the link and the host"
    )
    if result.build is not None:
        lines += _build_lines(result.build, base)
    if base.assumed:
        values = ", ".join(f"{name} {getattr(base, name):.3g}" for name in sorted(base.assumed))
        lines.append(f"assumed until a build or a board confirms it: {values}")
    if result.build is not None:
        lines.append("assumed: designs other than the one built reach its clock and its intervals")
    assumed = [
        "each argument is read through one port from one bank of memory, "
        f"{base.ddr_bytes_per_s / 1e9:.3g} GB/s at most",
        "resources by HP-GNN's formulas, up to everything that the part has; its shell and routing take "
        "some of it (see platforminfo)",
        *result.assumptions,
    ]
    return lines + [f"assumed: {assumption}" for assumption in assumed]


def exploration_json(result: ExplorationResult) -> dict[str, Any]:
    """Return the output of `hyrt fpga explore` as a JSON object."""
    part, work, build, base = result.part, result.work, result.build, result.base
    sizes = work.at(work.batch_size)
    return {
        "part": part.name,
        "targets": work.batch_size,
        "vertices": sizes.vertices,
        "edges": sizes.edges,
        "features": sizes.features,
        "front": [_candidate_fields(item, part) for item in result.front],
        "table_iv": _entry_or_reason(result.paper, part, work),
        "build": None
        if build is None or result.built is None
        else {
            "told_by": str(build.path),
            "reports": [str(item.path) for item in build.reports],
            "compared": [
                {"what" if key == "quantity" else key: value for key, value in asdict(item).items()}
                | {"ratio": item.ratio}
                for item in compare_estimates(build)
            ],
            "beyond_the_model": unmodelled_intervals(build.reports),
            "design": {**_design(base), "arena_words": build.arena_words},
            "predicted": _entry_or_reason(result.built, part, work),
        },
        "assumed": {name: getattr(base, name) for name in sorted(base.assumed)},
        "assumptions": list(result.assumptions),
    }


def _build_lines(build: Build, base: FpgaDesign) -> list[str]:
    design = build.design
    lines = [
        f"the build {build.path} (n = {design.pes}, m = {design.macs} = {design.mac_rows} x "
        f"{design.mac_cols}, arena of {build.arena_words:,} words, queues of {design.fifo_depth}) "
        "beside the estimates:",
        f"  {'':<32} {'estimated':>10} {'reported':>10} {'ratio':>6}",
    ]
    compared = compare_estimates(build)
    for comparison in compared:
        note = f"  {comparison.module}, the slowest" if comparison.quantity.startswith("clock") else ""
        lines.append(
            f"  {comparison.quantity:<32} {comparison.estimated:>10,.0f} {comparison.reported:>10,.0f} "
            f"{comparison.ratio:>6.2f}{note}"
        )
    if compared[0].quantity.startswith("clock"):
        lines.append(
            "  resources are not compared: hyrt_train_csynth.xml, the report of the whole kernel, is missing"
        )
    lines += [f"beyond the model: {sentence}" for sentence in unmodelled_intervals(build.reports)]
    fields = ", ".join(f"{name}: {_yaml(value)}" for name, value in _design(base).items())
    lines += [
        "for hyrt predict, in the accelerator of a platform's file:",
        f"  design: {{{fields}}}",
        f"  arena_words: {build.arena_words}",
    ]
    return lines


def _design(design: FpgaDesign) -> dict[str, Any]:
    """Return a design's fields as in a platform file."""
    values = asdict(design)
    values["ddr_gb_s"] = values.pop("ddr_bytes_per_s") / 1e9
    values["assumed"] = sorted(values.pop("assumed"))
    return values


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _entry_or_reason(candidate: Candidate | str, part: FpgaPart, work: TrainingWorkload) -> dict[str, Any]:
    if isinstance(candidate, str):
        return {"refused": candidate}
    return {**_candidate_fields(candidate, part), "task_cycles": _cycles(candidate, work)}


def _cycles(candidate: Candidate, work: TrainingWorkload) -> dict[str, Any]:
    """Return the cycles of a task by phase, and the total if aggregation and update overlap."""
    shape = TaskShape.from_workload(work.at(work.batch_size / candidate.tasks))
    cycles = task_cycles(shape, candidate.design)
    return {
        "layers": [asdict(layer) for layer in cycles.layers],
        "loss": cycles.loss,
        "total": cycles.total,
        "total_if_overlapped": task_cycles(shape, candidate.design, pipelined=True).total,
    }


def resource_line(part: FpgaPart, needs: Resources) -> str:
    """Format estimated resource use: `u250: DSP 90.6 %, LUT 74.2 %, ...`."""
    shares = ", ".join(f"{name.upper()} {share:.1%}" for name, share in needs.fractions_of(part).items())
    return f"{part.name}: {shares} (estimated)"


def _candidate_fields(candidate: Candidate, part: FpgaPart) -> dict[str, Any]:
    return {
        **{name: getattr(candidate.design, name) for name in ("pes", "mac_rows", "mac_cols")},
        **{name: getattr(candidate, name) for name in ("arena_words", "tasks", "step_s", "cost")},
        "widest_stream_bits": widest_stream_bits(candidate.design),
        "resources": asdict(candidate.resources),
        "utilisation": candidate.resources.fractions_of(part),
    }


def _candidate_row(candidate: Candidate, part: FpgaPart, edges: float) -> str:
    design, shares = candidate.design, candidate.resources.fractions_of(part)
    array = f"{design.macs} = {design.mac_rows} x {design.mac_cols}"
    return (
        f"{design.pes:3} {array:>17} {candidate.arena_words:>12,} {candidate.tasks:>6} "
        + " ".join(f"{shares[name]:>5.0%}" for name in ("dsp", "lut", "bram36", "uram"))
        + f" {candidate.step_s * 1e3:>9.3g} {edges / candidate.step_s / 1e6:>6.0f}"
        + ("  !" if _is_wide(design) else "")
    )


def _is_wide(design: FpgaDesign) -> bool:
    return widest_stream_bits(design) > STREAM_BITS


def _format_counts(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:,.0f}" for size in sizes)
