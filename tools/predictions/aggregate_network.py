"""Cycle-accurate simulation of the network in the aggregation kernel.

The kernel of `hyrt_hls` has this structure, except that its gather units store the head of each queue in a
register, which lengthens a queue by one, and the duplicator's words pass a queue of two on the way to a
scatter unit. `hls/hyrt_hls/rtl/aggregate_network.sv` is the same network in SystemVerilog, and a test checks
that both are equal in every cycle. n is `FpgaDesign.pes`, D its `fifo_depth`, and A its `adder_latency`.

Units
    duplicator      holds one group: up to n successive edges of one source, and one chunk (16 lanes) of its
                    row. A source's edges form groups of n, the last of which may be smaller; a group is
                    repeated for each chunk of the row before the next group.
    scatter unit s  one register (its skid): the message (to, chunk) of edge s of a group.
    queue (s, g)    n x n queues, each with a capacity of D messages.
    gather unit g   owns the rows with to % n == g. One message per cycle; a round-robin pointer.

In a cycle, all decisions depend on the state at its beginning, and all messages move at its end:
    1. Gather unit g looks at its queues in the order s = pointer, pointer + 1, ... (mod n) and takes the head
       of the first that is not empty and whose address (to, chunk) was not taken in the last A - 1 cycles
       (the sum is still in the adder: read after write). The pointer moves behind that queue. If there is
       none it waits, and the pointer stays.
    2. Scatter unit s, if its register is full, pushes into the queue (s, to % n) if that holds less than D
       messages: a pop of the same cycle frees its place only for the next one.
    3. The duplicator's message s is taken by the unit's register if this is empty or pushes in this cycle.
       The units take independently; when all messages of the group have been taken, the next group and chunk
       follows in the next cycle.

Cycle 0 is the first in which the duplicator holds a group. A message that a gather unit takes in cycle t is
in its bank A cycles later, and the last one ends the run: cycles = t + A. The multipliers of the scatter
units and the memory latency add a constant that is not included. Edges are assumed to arrive fast enough; the
time of reading edges is counted with the memory (`task_cycles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hyrt_perfmodel.fpga_cycles import EdgeList, edge_groups
from hyrt_perfmodel.fpga_design import FpgaDesign
from numba import njit
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def network_cycles(
    to: NDArray[Any],
    chunks: int,
    design: FpgaDesign,
    *,
    sources: NDArray[Any] | None = None,
) -> int:
    """Simulate the aggregation of a layer's edges.

    Parameters
    ----------
    to
        Result row to which each edge is added, in the order of the kernel's edge list: [E] integers.
    chunks
        Number of words per row.
    design
        Design, of which `pes`, `fifo_depth` and `adder_latency` are used.
    sources
        Source row of each edge, [E] integers: a new group begins when it changes. Without it, all groups
        except the last are full.

    Returns
    -------
    Number of cycles, which is 0 if there are no edges.

    Raises
    ------
    ValueError
        If `to` is not one-dimensional, has negative rows, or differs in length from `sources`; or if `chunks`
        is below 1.
    """
    if chunks < 1:
        raise ValueError(f"aggregate network: chunks must be at least 1, got {chunks}")
    groups = edge_groups(to, design.pes, sources)
    if len(groups) == 0:
        return 0
    return int(simulate_network(groups, chunks, design.fifo_depth, design.adder_latency))


def edge_list(sources: NDArray[Any], to: NDArray[Any]) -> EdgeList:
    """Return the edges in the kernel's order, which is sorted by source and then by destination row."""
    order = np.lexsort((to, sources))
    return EdgeList(sources=np.asarray(sources)[order], destinations=np.asarray(to)[order])


@njit(cache=True, nogil=True)
def simulate_network(groups: Integers, chunks: int, depth: int, latency: int) -> int:
    """Simulate at least one group of `edge_groups` until every queue is empty, and return the cycles."""
    num_groups, pes = groups.shape
    queues = np.empty((pes, pes, depth), np.int64)
    heads = np.zeros((pes, pes), np.int64)
    counts = np.zeros((pes, pes), np.int64)
    pointer = np.zeros(pes, np.int64)
    # Addresses that were taken in the last latency - 1 cycles, by cycle modulo this number.
    recent = np.full((pes, max(latency - 1, 1)), -1, np.int64)
    taken = np.empty(pes, np.int64)
    register = np.full(pes, -1, np.int64)
    pushes = np.zeros(pes, np.bool_)
    pending = groups[0] >= 0
    group = 0
    chunk = 0
    left = 0
    for index in range(num_groups):
        for unit in range(pes):
            if groups[index, unit] >= 0:
                left += chunks
    cycle = 0
    while True:
        for gather in range(pes):
            taken[gather] = -1
            for step in range(pes):
                scatter = (pointer[gather] + step) % pes
                if counts[scatter, gather] > 0:
                    address = queues[scatter, gather, heads[scatter, gather]]
                    free = True
                    for age in range(latency - 1):
                        if recent[gather, age] == address:
                            free = False
                    if free:
                        taken[gather] = scatter
                        break
        for scatter in range(pes):
            pushes[scatter] = register[scatter] >= 0 and (
                counts[scatter, register[scatter] // chunks % pes] < depth
            )
        for gather in range(pes):
            address = -1
            scatter = taken[gather]
            if scatter >= 0:
                address = queues[scatter, gather, heads[scatter, gather]]
                heads[scatter, gather] = (heads[scatter, gather] + 1) % depth
                counts[scatter, gather] -= 1
                pointer[gather] = (scatter + 1) % pes
                left -= 1
            if latency > 1:
                recent[gather, cycle % (latency - 1)] = address
        if left == 0:
            return cycle + latency
        for scatter in range(pes):
            if pushes[scatter]:
                gather = register[scatter] // chunks % pes
                tail = (heads[scatter, gather] + counts[scatter, gather]) % depth
                queues[scatter, gather, tail] = register[scatter]
                counts[scatter, gather] += 1
                register[scatter] = -1
        if group < num_groups:
            waiting = False
            for scatter in range(pes):
                if pending[scatter]:
                    if register[scatter] < 0:
                        register[scatter] = groups[group, scatter] * chunks + chunk
                        pending[scatter] = False
                    else:
                        waiting = True
            if not waiting:
                chunk += 1
                if chunk == chunks:
                    chunk = 0
                    group += 1
                if group < num_groups:
                    for scatter in range(pes):
                        pending[scatter] = groups[group, scatter] >= 0
        cycle += 1
