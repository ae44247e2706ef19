"""Text output of predictions on one machine and on several ranks, and of FPGA design explorations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hyrt_hls.build_report import Build, compare_estimates, unmodelled_intervals
from hyrt_hls.design_space import PAPER_DESIGN, Candidate
from hyrt_hls.fpga_part import FpgaPart
from hyrt_hls.resources import STREAM_BITS, Resources, widest_stream_bits
from hyrt_perfmodel.distributed_epoch import DistributedPrediction, fastest_algorithm
from hyrt_perfmodel.fpga_cycles import TaskShape, task_cycles
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.prediction.predict import Advice, MemoryNeed, Prediction
from hyrt_perfmodel.traffic import PURPOSES
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.formatting import format_bytes, format_duration, format_milliseconds, format_sig3, pluralize

if TYPE_CHECKING:
    from hyrt.predict.distributed_full_graph import FullGraphComparison
    from hyrt.predict.predict_ranks import RanksComparison


def prediction_lines(
    now: Prediction, advice: Sequence[Advice], platform: Platform, assumptions: Sequence[str] = ()
) -> list[str]:
    """Return the output of `hyrt predict` for one prediction as lines.

    `advice` lists changes that would make the run faster, starting with the best. `assumptions` about the
    workload are printed together with the platform's `source`.
    """
    low, high = (now.epoch_s * (1 + sign * now.relative_error) for sign in (-1, 1))
    steps = f"{now.iterations:,} step{'' if now.iterations == 1 else 's'}"
    lines = [
        *_stage_lines(now, platform),
        f"epoch {format_duration(now.epoch_s)} ({format_duration(low)} to {format_duration(high)}) · "
        f"{steps} of {format_milliseconds(now.iteration_s)} ms · "
        f"{now.throughput_mteps:,.1f} MTEPS",
        f"split {_split(now)} · {_threads(now, platform)}",
        f"memory {_memory(now.memory)}",
        *_memory_array_lines(now),
        f"ideal epoch, if the speeds of all devices added up: {format_duration(now.ideal_epoch_s)}",
    ]
    if advice:
        lines += [
            (
                f"to go faster: {line.change}: {_moved_text(line)}{format_duration(line.epoch_s)} per "
                f"epoch, then {_bottleneck_text(line.bottleneck)}"
            )
            for line in advice
        ]
    else:
        lines.append("to go faster: no single change saves more than a few percent")
    lines.append(f"estimated error ± {now.relative_error:.0%}: {now.platform}, {now.source}")
    return lines + [f"assumed: {assumption}" for assumption in assumptions]


def _moved_text(line: Advice) -> str:
    return "" if line.moved_ratio == 1 else f"{line.moved_ratio:.2f} of the rows' bytes, "


def scaling_lines(scaling: Sequence[tuple[int, Prediction]]) -> list[str]:
    """Return the table of epoch time, speed-up and bottleneck by number of accelerators."""
    if not scaling:
        return []
    first = scaling[0][1].epoch_s
    lines = ["accelerators       epoch  speed-up  bottleneck"]
    for count, prediction in scaling:
        idle = sum(not units for units in _accelerator_units(prediction))
        lines.append(
            f"{count:12} {format_duration(prediction.epoch_s):>11} "
            f"{first / prediction.epoch_s:8.2f}x  "
            f"{prediction.bottleneck}{f' ({idle} of {count} receive no targets)' if idle else ''}"
        )
    return lines


def _stage_lines(now: Prediction, platform: Platform) -> list[str]:
    lines = ["stage        ms/step    busy"]
    for stage, stage_s in now.stages.stages_s.items():
        synchronize_s = now.stages.synchronize_s if stage == "propagate" else 0.0
        line = f"{stage:10} {format_milliseconds(stage_s):>9} {_share(stage_s, now):>7}"
        if synchronize_s:
            line += f"  with synchronize {format_milliseconds(synchronize_s)}"
        if stage == now.bottleneck:
            line += f"  ◀ bottleneck{_reason(now, platform)}"
        lines.append(line)
    if now.bottleneck == "cores":
        lines.append(
            f"{'cores':10} {format_milliseconds(now.iteration_s):>9} {_share(now.iteration_s, now):>7}  ◀ "
            "bottleneck (the work of all stages together)"
        )
    return lines


def _reason(now: Prediction, platform: Platform) -> str:
    """Explain the bottleneck in parentheses; empty if there is nothing to add."""
    if now.bottleneck == "load" and not platform.host.loading:
        return f" (host memory {platform.host.memory_gb_s:.3g} GB/s effective)"
    times = {
        "transfer": now.stages.trainer_transfer_s,
        "propagate": now.stages.trainer_propagate_s,
    }.get(now.bottleneck)
    if now.gather_share is not None:
        return f" ({now.gather_share:.0%} reading rows along edges, the rest products and activations)"
    if not times or len(times) < 2:
        return ""
    slowest = max(range(len(times)), key=lambda i: times[i])
    if now.bottleneck == "propagate":
        if now.stages.synchronize_s > times[slowest]:
            return " (mostly synchronization)"
        # Name the kind of device, because all devices of a kind are equally slow.
        return f" ({_kind(now.trainers[slowest])} is the slowest trainer)"
    name = _kind(now.trainers[slowest])
    links = [kind.link_gb_s for kind in platform.accelerators if kind.kind == name]
    return f" ({name} link {links[0]:.3g} GB/s effective)" if links else ""


def _memory_array_lines(now: Prediction) -> list[str]:
    """Return lines for the arrays that full-graph training keeps in memory."""
    if not now.arrays:
        return []
    width = max(map(len, now.arrays))
    lines = [f"  {name:{width}} {format_bytes(num_bytes):>9}" for name, num_bytes in now.arrays.items()]
    [trainer] = [name for name, units in zip(now.trainers, now.assignment.split, strict=True) if units]
    return [f"on {trainer}{', at most' if now.is_upper_bound else ''}:", *lines]


def _split(now: Prediction) -> str:
    """Format the split by kind of device: `cpu:0 296 · a5000 2 x 183, 2 x 182`."""
    parts = []
    for kind, names in _group_by_kind(now.trainers):
        units = [now.assignment.split[i] for i in names]
        if len(units) == 1:
            parts.append(f"{now.trainers[names[0]]} {units[0]}")
            continue
        runs = [(len(list(run)), value) for value, run in groupby(sorted(units, reverse=True))]
        parts.append(f"{kind} " + ", ".join(f"{count} x {value}" for count, value in runs))
    return " · ".join(parts)


def _threads(now: Prediction, platform: Platform) -> str:
    threads = now.assignment.threads
    if threads.sample == threads.load == threads.train == platform.host.cores:
        # In the paper's model, stages do not compete for cores.
        return f"all {pluralize(threads.sample, 'core')} for each stage"
    return f"threads sample {threads.sample}, load {threads.load}, train {threads.train}"


def _memory(memory: Mapping[str, MemoryNeed]) -> str:
    """Format the fullest device per kind: `host 60 of 512 GiB: fits · a5000 16 MiB of 24 GiB each: fits`."""
    parts = []
    names = tuple(memory)
    for kind, indices in _group_by_kind(names):
        devices = [memory[names[i]] for i in indices]
        fullest = max(devices, key=lambda device: device.needed_bytes)
        text = f"{names[indices[0]] if len(indices) == 1 else kind} {format_bytes(fullest.needed_bytes)}"
        if fullest.available_bytes is not None:
            text += f" of {format_bytes(fullest.available_bytes)}"
        if len(indices) > 1:
            text += " each"
        if fullest.available_bytes is not None:
            text += ": fits" if all(device.fits for device in devices) else ": DOES NOT FIT"
        parts.append(text)
    return " · ".join(parts)


def _group_by_kind(names: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Group devices by kind, in order; yield each kind with the indices of its devices."""
    indices: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        indices.setdefault(_kind(name), []).append(i)
    return iter(indices.items())


def _kind(name: str) -> str:
    return name.rpartition(":")[0] or name


def _accelerator_units(prediction: Prediction) -> list[int]:
    pairs = zip(prediction.trainers, prediction.assignment.split, strict=True)
    return [units for name, units in pairs if _kind(name) != "cpu"]


def _bottleneck_text(bottleneck: str) -> str:
    return "the cores are the bottleneck" if bottleneck == "cores" else f"{bottleneck} is the bottleneck"


def _share(stage_s: float, now: Prediction) -> str:
    return f"{stage_s / now.iteration_s:.0%}" if now.iteration_s else "-"


_HEAD = "  n   m = rows x cols  arena words  tasks   DSP   LUT  BRAM  URAM   ms/step  MTEPS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationResult:
    """Result of a design exploration for the FPGA `part`."""

    part: FpgaPart
    work: TrainingWorkload
    front: Sequence[Candidate]
    """Pareto front, starting with the cheapest design."""
    paper: Candidate | str
    """Design in Table IV of the paper, or why it does not fit."""
    base: FpgaDesign
    """Design parameters that are not varied."""
    build: Build | None
    built: Candidate | str | None
    """Design of the build in `build`, or why it cannot be estimated; None without a build."""
    assumptions: Sequence[str]
    """Assumptions about the workload."""


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
            "Vitis HLS may refuse: try v++ -c first"
        )
    lines.append(
        "ms/step is the card's time for all tasks of a step; hyrt predict includes the link and the host"
    )
    if result.build is not None:
        lines += _build_lines(result.build, base)
    if base.assumed:
        values = ", ".join(f"{name} {getattr(base, name):.3g}" for name in sorted(base.assumed))
        lines.append(f"assumed until confirmed by a build or a board: {values}")
    if result.build is not None:
        lines.append("assumed: other designs reach the clock and the intervals of the built design")
    assumed = [
        "each argument is read through one port from one bank of memory, "
        f"{base.ddr_bytes_per_s / 1e9:.3g} GB/s at most",
        (
            "resources follow HP-GNN's formulas, up to the total of the part; its shell and "
            "routing use some of it (see platforminfo)"
        ),
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
        (
            f"the build {build.path} (n = {design.pes}, m = {design.macs} = {design.mac_rows} "
            f"x {design.mac_cols}, arena of {build.arena_words:,} words, queues of "
            f"{design.fifo_depth}) compared with the estimates:"
        ),
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
        "for hyrt predict, as an accelerator in a platform file:",
        f"  design: {{{fields}}}",
        f"  arena_words: {build.arena_words}",
    ]
    return lines


def _design(design: FpgaDesign) -> dict[str, Any]:
    """Return the fields of a design as in a platform file."""
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
    """Return the cycles of a task by phase, and the total with overlapping aggregation and update."""
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


def full_graph_lines(comparison: FullGraphComparison) -> list[str]:
    """Return the output of `hyrt predict --full-graph --ranks`; tables fit into 80 columns."""
    network = comparison.network
    lines = [
        (
            f"{pluralize(comparison.ranks, 'rank')} like {comparison.machine} · "
            f"{network.name}: {format_sig3(network.gb_s)} GB/s each way, "
            f"{format_duration(network.latency_s)} per message"
        ),
        f"{'algorithm':21} {'epoch':>8} {'computing':>9} {'travelling':>10} {'gradients':>9} {'sent':>8} "
        f"{'memory':>9}",
    ]
    lines += [
        f"{row.name:21} {format_duration(row.epoch_s):>8} {format_duration(row.compute_s):>9} "
        f"{format_duration(row.products_s):>10} {format_duration(row.gradients_s):>9} "
        f"{format_bytes(row.epoch_bytes):>8} "
        f"{format_bytes(row.memory_bytes):>9}"
        for row in comparison.algorithms
    ]
    lines.append(f"fastest: {fastest_algorithm(comparison.algorithms).name}")
    if len(comparison.scaling) > 1:
        lines.append("by number of ranks, each with its fastest algorithm:")
        lines += [
            f"  {row.ranks:>5} {format_duration(row.epoch_s):>9}  {row.name:22} "
            f"{format_bytes(row.memory_bytes):>9} per rank"
            for row in comparison.scaling
        ]
        best = comparison.best_ranks
        limitation = "" if best < comparison.ranks else ", and more ranks may be faster"
        lines.append(f"{pluralize(best, 'rank')} of these {_has(best)} the shortest epoch{limitation}")
    lines.append(f"estimated error ± {comparison.relative_error:.0%}: {comparison.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in comparison.assumptions]


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def ranks_lines(comparison: RanksComparison) -> list[str]:
    """Return the output of `hyrt predict --ranks`, for one or several strategies."""
    from hyrt.distributed.strategies.registry import create_strategy

    network = comparison.network
    lines = [
        (
            f"{pluralize(comparison.ranks, 'rank')} like {comparison.machine} · "
            f"{network.name}: {format_sig3(network.gb_s)} GB/s each way, "
            f"{format_duration(network.latency_s)} per message"
        ),
        f"{'strategy':16} {'epoch':>9}  {'sent':>9}  bottleneck",
    ]
    lines += [
        f"{prediction.strategy:16} {format_duration(prediction.epoch_s):>9}  "
        f"{format_bytes(prediction.total_bytes):>9}  "
        f"{prediction.bottleneck}"
        f"{' (changes what is trained)' if create_strategy(prediction.strategy).draws_locally else ''}"
        for prediction in comparison.predictions
    ]
    if len(comparison.predictions) == 1:
        lines += _strategy_lines(comparison.predictions[0])
    else:
        best = min(comparison.predictions, key=lambda prediction: prediction.epoch_s)
        lines.append(f"fastest: {best.strategy}; --strategy NAME shows its stages and bytes")
    lines.append(f"estimated error ± {comparison.relative_error:.0%}: {comparison.machine}, {network.source}")
    return lines + [f"assumed: {assumption}" for assumption in comparison.assumptions]


def _strategy_lines(prediction: DistributedPrediction) -> list[str]:
    """Format the stages and the traffic of a rank."""
    stages = " · ".join(
        f"{name} {format_milliseconds(time_s)}" for name, time_s in prediction.stages_s.items()
    )
    lines = [
        f"{pluralize(prediction.iterations, 'step')} of {format_milliseconds(prediction.iteration_s)} ms · "
        f"in ms: {stages}",
        f"{'purpose':10} {'ms/step':>9}  {'epoch':>9}",
    ]
    return lines + [
        f"{name:10} {format_milliseconds(prediction.communication_s[name]):>9}  "
        f"{format_bytes(prediction.epoch_bytes[name]):>9}"
        for name in PURPOSES
        if prediction.epoch_bytes[name]
    ]
