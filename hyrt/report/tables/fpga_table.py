"""The text of an exploration: the front, the paper's design, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hyrt_hls.parts.explore import PAPER, Candidate
from hyrt_hls.parts.part import Part
from hyrt_hls.parts.resources import STREAM_BITS, Resources, widest_stream_bits
from hyrt_hls.vitis.finished_build import Build, compare
from hyrt_hls.vitis.vpp_report import beyond_the_model
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.cycles.task_shape import TaskShape
from hyrt_perfmodel.cycles.trainer_cycles import task_cycles
from hyrt_perfmodel.workloads.workload import TrainingWorkload

_HEAD = "  n   m = rows x cols  arena words  tasks   DSP   LUT  BRAM  URAM   ms/step  MTEPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """What was found."""

    part: Part
    work: TrainingWorkload
    """`part` and `work`: that were explored."""
    front: Sequence[Candidate]
    """The cheapest first."""
    paper: Candidate | str
    """The design of the paper's Table IV, or why it does not fit."""
    base: FpgaDesign
    """What was not searched."""
    build: Build | None
    built: Candidate | str | None
    """`build` and `built`: whose reports were read, if any, and its design, or why it is beyond the estimate.
    """
    assumptions: Sequence[str]
    """About the work."""


def explored_lines(found: Explored) -> list[str]:
    """What `hyrt fpga explore` prints."""
    part, work, base = found.part, found.work, found.base
    sizes = work.at(work.batch_size)
    edges = sizes.num_edges
    lines = [
        f"{part.name} · {work.batch_size:,} targets · vertices {_counts(sizes.vertices)} · edges "
        f"{_counts(sizes.edges)} · widths {', '.join(map(str, sizes.features))}",
        _HEAD,
        *(
            _row(each, part, edges)
            + ("  ◀ Table IV's n and m" if (each.design.pes, each.design.macs) == PAPER else "")
            for each in found.front
        ),
    ]
    for name, one in (
        (f"Table IV's design (n = {PAPER[0]}, m = {PAPER[1]})", found.paper),
        ("the build", found.built),
    ):
        if isinstance(one, str):
            lines.append(f"{name}: {one}")
        elif one is not None and one not in found.front:
            lines.append(f"{_row(one, part, edges)}  {name}, not on the front")
    shown = [each for each in (*found.front, found.paper, found.built) if isinstance(each, Candidate)]
    if any(_is_wide(each.design) for each in shown):
        lines.append(
            f"! a stream is wider than {STREAM_BITS:,} bits (512 n, or 32 per row or column), which "
            "Vitis HLS is reported to refuse: try v++ -c first"
        )
    lines.append(
        "ms/step is the card's time for all tasks of a step; hyrt predict includes the link and the host"
    )
    if found.build is not None:
        lines += _build_lines(found.build, base)
    if base.assumed:
        values = ", ".join(f"{name} {getattr(base, name):.3g}" for name in sorted(base.assumed))
        lines.append(f"assumed until a build or a board confirms it: {values}")
    if found.build is not None:
        lines.append("assumed: designs other than the one built reach its clock and its intervals")
    assumed = [
        "each argument is read through one port from one bank of memory, "
        f"{base.ddr_bytes_per_s / 1e9:.3g} GB/s at most",
        "resources by HP-GNN's formulas, up to everything that the part has; its shell and routing take "
        "some of it (see platforminfo)",
        *found.assumptions,
    ]
    return lines + [f"assumed: {assumption}" for assumption in assumed]


def explored_json(found: Explored) -> dict[str, Any]:
    """The same as one JSON object."""
    part, work, build, base = found.part, found.work, found.build, found.base
    sizes = work.at(work.batch_size)
    return {
        "part": part.name,
        "targets": work.batch_size,
        "vertices": sizes.vertices,
        "edges": sizes.edges,
        "features": sizes.features,
        "front": [_entry(each, part) for each in found.front],
        "table_iv": _entry_or_why(found.paper, part, work),
        "build": None
        if build is None or found.built is None
        else {
            "told_by": str(build.path),
            "reports": [str(each.path) for each in build.reports],
            "compared": [{**asdict(each), "ratio": each.ratio} for each in compare(build)],
            "beyond_the_model": beyond_the_model(build.reports),
            "design": {**_design(base), "arena_words": build.arena_words},
            "predicted": _entry_or_why(found.built, part, work),
        },
        "assumed": {name: getattr(base, name) for name in sorted(base.assumed)},
        "assumptions": list(found.assumptions),
    }


def _build_lines(build: Build, base: FpgaDesign) -> list[str]:
    design = build.design
    lines = [
        f"the build {build.path} (n = {design.pes}, m = {design.macs} = {design.mac_rows} x "
        f"{design.mac_cols}, arena of {build.arena_words:,} words, queues of {design.fifo_depth}) "
        "beside the estimates:",
        f"  {'':<32} {'estimated':>10} {'reported':>10} {'ratio':>6}",
    ]
    compared = compare(build)
    for each in compared:
        by = f"  {each.module}, the slowest" if each.what.startswith("clock") else ""
        lines.append(
            f"  {each.what:<32} {each.estimated:>10,.0f} {each.reported:>10,.0f} {each.ratio:>6.2f}{by}"
        )
    if compared[0].what.startswith("clock"):
        lines.append(
            "  resources are not compared: hyrt_train_csynth.xml, the report of the whole kernel, is missing"
        )
    lines += [f"beyond the model: {sentence}" for sentence in beyond_the_model(build.reports)]
    fields = ", ".join(f"{name}: {_yaml(value)}" for name, value in _design(base).items())
    lines += [
        "for hyrt predict, in the accelerator of a platform's file:",
        f"  design: {{{fields}}}",
        f"  arena_words: {build.arena_words}",
    ]
    return lines


def _design(design: FpgaDesign) -> dict[str, Any]:
    """As a platform's file gives it."""
    values = asdict(design)
    values["ddr_gb_s"] = values.pop("ddr_bytes_per_s") / 1e9
    values["assumed"] = sorted(values.pop("assumed"))
    return values


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _entry_or_why(one: Candidate | str, part: Part, work: TrainingWorkload) -> dict[str, Any]:
    if isinstance(one, str):
        return {"refused": one}
    return {**_entry(one, part), "task_cycles": _cycles(one, work)}


def _cycles(one: Candidate, work: TrainingWorkload) -> dict[str, Any]:
    """Cycles of a task by phase, and of one in which a layer's aggregation and update overlapped."""
    shape = TaskShape.of(work.at(work.batch_size / one.tasks))
    cycles = task_cycles(shape, one.design)
    return {
        "layers": [asdict(layer) for layer in cycles.layers],
        "loss": cycles.loss,
        "total": cycles.total,
        "total_if_overlapped": task_cycles(shape, one.design, pipelined=True).total,
    }


def resource_line(part: Part, needs: Resources) -> str:
    """`u250: DSP 90.6 %, LUT 74.2 %, ...`, an estimate."""
    shares = ", ".join(f"{name.upper()} {share:.1%}" for name, share in needs.of(part).items())
    return f"{part.name}: {shares} (estimated)"


def _entry(each: Candidate, part: Part) -> dict[str, Any]:
    return {
        **{name: getattr(each.design, name) for name in ("pes", "mac_rows", "mac_cols")},
        **{name: getattr(each, name) for name in ("arena_words", "tasks", "step_s", "cost")},
        "widest_stream_bits": widest_stream_bits(each.design),
        "resources": asdict(each.resources),
        "utilisation": each.resources.of(part),
    }


def _row(each: Candidate, part: Part, edges: float) -> str:
    design, shares = each.design, each.resources.of(part)
    array = f"{design.macs} = {design.mac_rows} x {design.mac_cols}"
    return (
        f"{design.pes:3} {array:>17} {each.arena_words:>12,} {each.tasks:>6} "
        + " ".join(f"{shares[name]:>5.0%}" for name in ("dsp", "lut", "bram36", "uram"))
        + f" {each.step_s * 1e3:>9.3g} {edges / each.step_s / 1e6:>6.0f}"
        + ("  !" if _is_wide(design) else "")
    )


def _is_wide(design: FpgaDesign) -> bool:
    return widest_stream_bits(design) > STREAM_BITS


def _counts(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:,.0f}" for size in sizes)
