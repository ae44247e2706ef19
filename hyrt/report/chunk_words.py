"""What a step over a whole graph in chunks took, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hyrt.fullgraph.chunks.chunked_step import cut_text
from hyrt.quantities import duration, size

# Of a step: a device that is busy for less of it does not bound it.
_MOST_OF_IT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWords:
    """The lines that a display or a page has of one trainer; each is empty where nothing is known."""

    cut: str
    """How the graph was cut, what was copied and what was swapped."""
    filtered: str
    """For how many chunks rows were filtered, and what that came to."""
    devices: Mapping[str, str]
    """Of each device how long it computed and copied, and how much of the copying was hidden."""
    bound: str
    """What bounds the step."""

    @classmethod
    def of(cls, trainer: str, figures: Mapping[str, Any], label: Callable[[str], str] = str) -> ChunkWords:
        """The words for a step.

        Parameters
        ----------
        trainer
            The name of the trainer.
        figures
            Those of `hyrt.fullgraph.chunks.chunked_step.ChunkedStep`, also as an earlier version wrote them.
        label
            Makes what is shown of a device's name.
        """
        works = works_of(trainer, figures)
        told = {label(name): device_text(work, alone=len(works) == 1) for name, work in works.items()}
        return cls(
            cut=cut_text(figures),
            filtered=filter_text(figures),
            devices={name: text for name, text in told.items() if text},
            bound=bound_text(works, figures.get("step_s") or 0.0, label),
        )


def works_of(trainer: str, figures: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """By device, what its queues did: figures of `ChunkWork`. Of earlier versions, one device did all."""
    found: Mapping[str, Mapping[str, float]] = figures.get("by_device") or {trainer: figures}
    return found


def filter_text(figures: Mapping[str, Any]) -> str:
    """For how many chunks rows were filtered, and what that came to; empty where nothing is copied."""
    reads, filtered = int(figures.get("reads") or 0), int(figures.get("filtered") or 0)
    if not filtered:
        if not reads or not figures["in_bytes"]:
            return ""
        return f"filtering: for none of {reads:,} chunks, each gets all rows of an interval"
    spared, read = figures["spared_bytes"], figures.get("read_bytes") or 0
    share = f" ({spared / (spared + read):.0%} of all rows)" if read else ""
    return (
        f"filtering: rows for {filtered:,} of {reads:,} chunks, {size(spared)}{share} not copied, "
        f"in {duration(figures['filter_s'])}"
    )


def device_text(work: Mapping[str, float], *, alone: bool) -> str:
    """How long a device computed and copied; empty where it does not measure.

    Parameters
    ----------
    work
        Figures of `hyrt.fullgraph.chunks.chunked_step.ChunkWork`.
    alone
        Whether it is the only one, so that what it copied is said elsewhere.
    """
    copy_s, compute_s = work["copy_s"], work["compute_s"]
    if not work["in_bytes"] and compute_s:
        told = f"computing {duration(compute_s)} on rows and edges where they lie"
        out = "" if alone else f" ({size(work['out_bytes'])})"
        return f"{told}, copying {duration(copy_s)} of results{out}" if copy_s else told
    if not copy_s:
        return ""
    amounts = "" if alone else f" ({size(work['in_bytes'])} in, {size(work['out_bytes'])} out)"
    return (
        f"copying {duration(copy_s)}{amounts}, {work['hidden_s'] / copy_s:.0%} of it hidden behind "
        f"{duration(compute_s)} of computing"
    )


def bound_text(
    works: Mapping[str, Mapping[str, float]], step_s: float, label: Callable[[str], str] = str
) -> str:
    """What bounds a step; empty where it was not measured.

    Parameters
    ----------
    works
        By device, figures of `ChunkWork`.
    step_s
        How long the whole step took.
    label
        Makes what is shown of a device's name.
    """
    busy = {name: work["compute_s"] + work["copy_s"] - work["hidden_s"] for name, work in works.items()}
    if not step_s or not any(busy.values()):
        return ""
    name = max(busy, key=busy.__getitem__)
    work, share = works[name], busy[name] / step_s
    if share < _MOST_OF_IT:
        return (
            f"bound by what the host does and waits for: {label(name)} computes and copies for {share:.0%} "
            f"of a step of {duration(step_s)}"
        )
    what = "copying" if work["copy_s"] - work["hidden_s"] > work["compute_s"] else "computing"
    of_step = f"{share:.0%} of a step of {duration(step_s)}"
    return f"bound by {what} on {label(name)}, which is busy for {of_step}"
