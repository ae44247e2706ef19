"""Text output of `hyrt predict`: stages, epoch, assignment, memory, advice and accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.predict import Advice, MemoryNeed, Prediction

from hyrt.formatting import format_bytes, format_duration, format_milliseconds, pluralize


def prediction_lines(
    now: Prediction, advice: Sequence[Advice], platform: Platform, assumptions: Sequence[str] = ()
) -> list[str]:
    """Return the output of `hyrt predict` for one prediction as lines.

    `advice` lists changes that would make the run faster, the best first. `assumptions` on the workload are
    printed together with the platform's `source`.
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
        lines.append("to go faster: no single change saves more than a few per cent")
    lines.append(f"estimated error ± {now.relative_error:.0%}: {now.platform}, {now.source}")
    return lines + [f"assumed: {assumption}" for assumption in assumptions]


def _moved_text(line: Advice) -> str:
    return "" if line.moved_ratio == 1 else f"{line.moved_ratio:.2f} of the rows' bytes, "


def scaling_lines(scaling: Sequence[tuple[int, Prediction]]) -> list[str]:
    """Format the table of epoch time, speed-up and bottleneck by number of accelerators."""
    if not scaling:
        return []
    first = scaling[0][1].epoch_s
    lines = ["accelerators       epoch  speed-up  bottleneck"]
    for count, prediction in scaling:
        idle = sum(not units for units in _accelerator_units(prediction))
        lines.append(
            f"{count:12} {format_duration(prediction.epoch_s):>11} {first / prediction.epoch_s:8.2f}x  "
            f"{prediction.bottleneck}{f' ({idle} of {count} get no targets)' if idle else ''}"
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
    """Explain the bottleneck in brackets; "" if there is nothing to add."""
    if now.bottleneck == "load" and not platform.host.loading:
        return f" (host memory {platform.host.memory_gb_s:.3g} GB/s effective)"
    times = {
        "transfer": now.stages.trainer_transfer_s,
        "propagate": now.stages.trainer_propagate_s,
    }.get(now.bottleneck)
    if now.gather_share is not None:
        return f" (reading rows along edges {now.gather_share:.0%}, products and activations the rest)"
    if not times or len(times) < 2:
        return ""
    slowest = max(range(len(times)), key=lambda i: times[i])
    if now.bottleneck == "propagate":
        if now.stages.synchronize_s > times[slowest]:
            return " (mostly synchronization)"
        # Name the kind, because all devices of a kind are equally slow.
        return f" ({_kind(now.trainers[slowest])} is the slowest trainer)"
    name = _kind(now.trainers[slowest])
    links = [kind.link_gb_s for kind in platform.accelerators if kind.kind == name]
    return f" ({name} link {links[0]:.3g} GB/s effective)" if links else ""


def _memory_array_lines(now: Prediction) -> list[str]:
    """List the arrays that full-graph training keeps in memory."""
    if not now.arrays:
        return []
    width = max(map(len, now.arrays))
    lines = [f"  {name:{width}} {format_bytes(num_bytes):>9}" for name, num_bytes in now.arrays.items()]
    [trainer] = [name for name, units in zip(now.trainers, now.assignment.split, strict=True) if units]
    return [f"on {trainer}{', at most' if now.is_upper_bound else ''}:", *lines]


def _split(now: Prediction) -> str:
    """Format the split, grouped by kind of device: `cpu:0 296 · a5000 2 x 183, 2 x 182`."""
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
        # The paper's model does not let stages compete for cores.
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
    """Group devices by kind, in order; yield the kinds with the indices of their devices."""
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
