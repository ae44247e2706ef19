"""The text of an exploration: the front, the paper's design, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hyrt_hls.explore import PAPER, Candidate
from hyrt_hls.parts import Part
from hyrt_hls.resources import Resources
from hyrt_hls.vpp_report import HlsReport, beyond_the_model
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.workload import Training

_HEAD = "  n   m = rows x cols  arena words  tasks   DSP   LUT  BRAM  URAM   ms/step  MTEPS"


def explored_lines(
    part: Part,
    work: Training,
    found: Sequence[Candidate],
    paper: Candidate | str,
    base: FpgaDesign,
    reports: Sequence[HlsReport],
    assumptions: Sequence[str],
) -> list[str]:
    """What `hyrt fpga explore` prints.

    Parameters
    ----------
    part, work
        That were explored.
    found
        The front, the cheapest first.
    paper
        The design of the paper's Table IV, or why it does not fit.
    base
        What was not searched.
    reports
        That were read.
    assumptions
        About the work.
    """
    sizes = work.at(work.batch_size)
    edges = sizes.num_edges
    lines = [
        f"{part.name} · {work.batch_size:,} targets · vertices {_counts(sizes.vertices)} · edges {_counts(sizes.edges)} · "
        f"widths {', '.join(map(str, sizes.features))}",
        _HEAD,
        *(_row(each, part, edges) + _mark(each) for each in found),
    ]
    if isinstance(paper, str):
        lines.append(f"Table IV's design (n = {PAPER[0]}, m = {PAPER[1]}): {paper}")
    elif not any(_same(each, paper) for each in found):
        lines.append(f"{_row(paper, part, edges)}  Table IV's design, not on the front")
    lines.append("ms/step is the card's own time of all tasks; the link and the host are in hyrt predict")
    lines += [f"read: {each.path}: {each.module} runs at {each.clock_hz / 1e6:.0f} MHz" for each in reports]
    lines += [f"beyond the model: {sentence}" for sentence in beyond_the_model(reports)]
    if base.assumed:
        values = ", ".join(f"{name} {getattr(base, name):.3g}" for name in sorted(base.assumed))
        lines.append(f"assumed until a build or a board tells: {values}")
    lines.append(
        f"assumed: each argument is read through one port from one bank of memory, {base.ddr_bytes_per_s / 1e9:.3g} GB/s at most"
    )
    lines.append(
        "assumed: resources by HP-GNN's formulas, up to all that the part has; a shell and routing take some: platforminfo tells"
    )
    return lines + [f"assumed: {assumption}" for assumption in assumptions]


def explored_json(
    part: Part,
    work: Training,
    found: Sequence[Candidate],
    paper: Candidate | str,
    base: FpgaDesign,
    reports: Sequence[HlsReport],
    assumptions: Sequence[str],
) -> dict[str, Any]:
    """The same as one JSON object; parameters as of `explored_lines`."""
    sizes = work.at(work.batch_size)
    return {
        "part": part.name,
        "targets": work.batch_size,
        "vertices": sizes.vertices,
        "edges": sizes.edges,
        "features": sizes.features,
        "front": [_entry(each, part) for each in found],
        "table_iv": {"refused": paper} if isinstance(paper, str) else _entry(paper, part),
        "reports": [str(each.path) for each in reports],
        "beyond_the_model": beyond_the_model(reports),
        "assumed": {name: getattr(base, name) for name in sorted(base.assumed)},
        "assumptions": list(assumptions),
    }


def resource_line(part: Part, needs: Resources) -> str:
    """`u250: DSP 90.6 %, LUT 74.2 %, ...`, an estimate."""
    shares = ", ".join(f"{name.upper()} {share:.1%}" for name, share in needs.of(part).items())
    return f"{part.name}: {shares} (estimated)"


def _entry(each: Candidate, part: Part) -> dict[str, Any]:
    return {
        "pes": each.design.pes,
        "mac_rows": each.design.mac_rows,
        "mac_cols": each.design.mac_cols,
        "arena_words": each.arena_words,
        "tasks": each.tasks,
        "step_s": each.step_s,
        "cost": each.cost,
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
    )


def _mark(each: Candidate) -> str:
    return "  ◀ Table IV's n and m" if (each.design.pes, each.design.macs) == PAPER else ""


def _same(a: Candidate, b: Candidate) -> bool:
    return a.design == b.design and a.arena_words == b.arena_words


def _counts(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:,.0f}" for size in sizes)
