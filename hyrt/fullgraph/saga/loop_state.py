"""Accumulators of a loop: on the host for all near rows, on a device for the rows of an interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.nn.fused.edge_loop import EdgeLoop

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StatePart:
    """One accumulator matrix."""

    name: str
    """Name of the kernel argument."""
    rows: Array
    """[near, width] on the host."""
    start: int
    """Initial value."""


class LoopState:
    """Accumulators of a loop.

    Parameters
    ----------
    loop
        The loop.
    outs
        See `hyrt.nn.fused.loop_runner.LoopRunner`.
    num_near
        Number of near rows.
    places
        [num_near] positions of their gradients in `outs`; in order by default.
    continues
        Whether the device adds to existing values. Otherwise it writes final results.
    """

    def __init__(
        self,
        loop: EdgeLoop,
        outs: Sequence[Array | None],
        num_near: int,
        places: Array | None,
        *,
        continues: bool,
    ) -> None:
        self._loop = loop
        self._continues = continues
        self._places = places if loop.by_chunk else None
        self._outs = outs
        self.parts = list(self._made(num_near))
        self.totals = [k for k in range(len(loop.form.results)) if loop.is_total(k)]
        """Results that are summed over all rows."""

    def _made(self, num: int) -> Iterator[StatePart]:
        loop, outs = self._loop, list(self._outs)
        if loop.combine == "sum":
            wanted = [k for k in range(len(loop.form.results)) if not loop.is_total(k)]
            for k, out in zip(wanted, outs, strict=True):
                assert out is not None
                rows = out if self._places is None else np.empty((num, out.shape[1]), out.dtype)
                yield StatePart(f"o{k}", rows, 0)
            return
        out, kept = outs
        assert out is not None
        yield StatePart("o0", out, 0)
        if loop.combine == "max":
            if kept is not None or self._continues:
                yield StatePart("o1", np.empty(out.shape, np.int32) if kept is None else kept, -1)
        elif self._continues:
            for name in ("o1", "o2"):
                yield StatePart(name, np.empty((num, loop.form.heads), out.dtype), 0)
        elif kept is not None:
            yield StatePart("o1", kept, 0)

    def finish(self, start: int, stop: int) -> None:
        """Compute final results of rows that were copied back."""
        if self._places is not None:
            wanted = [out for out in self._outs if out is not None]
            for out, part in zip(wanted, self.parts, strict=True):
                out[self._places[start:stop]] = part.rows[start:stop]
        if self._loop.combine == "attention" and self._continues:
            gathered, kept = (None if out is None else out[start:stop] for out in self._outs)
            assert gathered is not None
            top, weights = (part.rows[start:stop] for part in self.parts[1:])
            there = weights > 0
            inverse = np.divide(1, weights, out=np.zeros_like(weights), where=there)
            by_head = gathered.reshape(*weights.shape, gathered.shape[1] // weights.shape[1])
            by_head *= inverse[:, :, None]
            if kept is not None:
                kept[:] = top + np.log(weights, out=np.zeros_like(weights), where=there)
