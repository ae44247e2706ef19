"""Local search that moves single vertices to reduce the traffic between parts, especially in the busiest
direction.

Acer, Selvitopi and Aykanat, "Improving performance of sparse matrix dense matrix multiplication on
large-scale parallel systems", Parallel Computing 59 (2016), have the same objective, the total and the
largest send volume with a bound on the imbalance of non-zeros, but another search algorithm. Received rows
count like sent rows, because an exchange waits for the direction with more rows, and gradients are sent in
the opposite direction. Each part has two directions: arrays [2P] (`traffic`, `prices`) have the rows that
parts send, followed by the rows that parts receive.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.runtime.numba_cache import nb

_jit = nb.njit(nogil=True, cache=True, error_model="numpy")


class NeighborPartCounts:
    """Number of out-neighbours of each vertex in each part, for edges as CSR by destination and parts [V]
    int32.

    A vertex has one slot per out-neighbour, but at most one per part: at most 6 bytes per edge in total.
    """

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[Any], homes: NDArray[np.int32], num_parts: int
    ) -> None:
        out_degrees = np.bincount(indices, minlength=len(homes))
        self.starts = np.zeros(len(homes) + 1, np.int64)
        np.cumsum(np.minimum(out_degrees, num_parts), out=self.starts[1:])
        self.parts = np.empty(self.starts[-1], np.int16)
        self.counts = np.empty(self.starts[-1], np.int32)
        self.used = np.zeros(len(homes), np.int32)
        """Number of used slots of each vertex, [V]."""
        _fill(indptr, indices, homes, self.starts, self.parts, self.counts, self.used)


@_jit
def add_neighbor(starts, parts, counts, used, u, part):
    """Add an out-neighbour of u in a part; return whether it is the first one."""
    first = starts[u]
    for i in range(first, first + used[u]):
        if parts[i] == part:
            counts[i] += 1
            return False
    parts[first + used[u]] = part
    counts[first + used[u]] = 1
    used[u] += 1
    return True


@_jit
def remove_neighbor(starts, parts, counts, used, u, part):
    """Remove an out-neighbour of u in a part; return whether it was the last one."""
    first = starts[u]
    for i in range(first, first + used[u]):
        if parts[i] == part:
            counts[i] -= 1
            if counts[i]:
                return False
            last = first + used[u] - 1
            parts[i] = parts[last]
            counts[i] = counts[last]
            used[u] -= 1
            return True
    return False


@_jit
def _fill(indptr, indices, homes, starts, parts, counts, used):
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            add_neighbor(starts, parts, counts, used, indices[e], homes[v])


@_jit
def count_traffic(starts, parts, used, homes, num_parts):
    """Return the rows that each part sends, then the rows that each part receives, [2 num_parts] int64."""
    traffic = np.zeros(2 * num_parts, np.int64)
    for u in range(len(homes)):
        for i in range(starts[u], starts[u] + used[u]):
            if parts[i] != homes[u]:
                traffic[homes[u]] += 1
                traffic[num_parts + parts[i]] += 1
    return traffic


_GAIN = 1e-9
# Limits of a search: number of moves, and number of neighbours to examine per moved vertex.
_LONGEST = 64
_WIDEST = 8
# A search pass that has examined _TRIAL edges ends if it had less than one success per _WORTH_EDGES edges.
_TRIAL = 1 << 22
_WORTH_EDGES = 1 << 19


@_jit
def _price(rows, scale, power):
    """Return the marginal cost of a row in a direction: 1 plus a price that increases with the traffic."""
    if power == 0:
        return 1.0
    return 1.0 + power * (rows / scale) ** (power - 1)


@_jit
def _cost(rows, scale, power):
    """Return the total cost of a direction, which is the sum of the costs of its rows."""
    if power == 0:
        return float(rows)
    return rows + scale * (rows / scale) ** power


@_jit
def _prices(traffic, power):
    """Return the scale of prices, and the marginal cost of a row in each direction.

    The scale is the midpoint between the mean and the largest traffic. If it were the mean, rows of the
    busiest directions would cost many times as much as other rows, and total traffic would increase. If it
    were the largest traffic, only few directions would lose rows.
    """
    scale = max((traffic.mean() + traffic.max()) / 2, 1.0)
    prices = np.empty(len(traffic))
    for q in range(len(traffic)):
        prices[q] = _price(traffic[q], scale, power)
    return scale, prices


@_jit
def _best_move(v, graph, homes, near, held, weights, bounds, prices, scratch):
    """Return the cheapest other part for a vertex (-1 if no part can take it), and the change in cost.

    `held` has the weight and the number of vertices of each part. `bounds` has the minimum and the maximum
    weight of a part, and its maximum number of vertices.
    """
    indptr, indices = graph
    starts, parts, counts, used = near
    saved, num_saved, is_candidate, candidates = scratch
    loads, sizes = held
    a, num_parts = homes[v], len(loads)
    min_load, max_load, max_vertices = bounds
    if loads[a] - weights[v] < min_load or sizes[a] < 2:
        # A part must never become empty, even if the others could take its vertices.
        return -1, np.inf
    num_candidates = 0
    if loads[a] > max_load or sizes[a] > max_vertices:
        # The only parts that can take v may be ones that have no neighbours of v.
        lightest = _find_lightest_available(loads, sizes, max_vertices)
        if lightest >= 0:
            is_candidate[lightest] = True
            candidates[num_candidates] = lightest
            num_candidates += 1
    everywhere = leaving = 0.0
    receives_here = prices[num_parts + a]
    for e in range(indptr[v], indptr[v + 1]):
        u = indices[e]
        home = homes[u]
        price = prices[home]
        everywhere += price
        saw_home = home == a
        for i in range(starts[u], starts[u] + used[u]):
            p = parts[i]
            if p == home:
                saw_home = True
            if p == a:
                if counts[i] == 1 and home != a:
                    leaving += price + receives_here
                continue
            if not is_candidate[p]:
                is_candidate[p] = True
                candidates[num_candidates] = p
                num_candidates += 1
            saved[p] += price
            num_saved[p] += 1
        if not saw_home:
            if not is_candidate[home]:
                is_candidate[home] = True
                candidates[num_candidates] = home
                num_candidates += 1
            saved[home] += price
            num_saved[home] += 1
    sent_here, also_here = 0, 0.0
    for i in range(starts[v], starts[v] + used[v]):
        p = parts[i]
        if p != a:
            sent_here += 1
            if not is_candidate[p]:
                is_candidate[p] = True
                candidates[num_candidates] = p
                num_candidates += 1
        else:
            # If v moves, its row must be sent to the neighbours that stay in the old part.
            also_here = receives_here
    degree = indptr[v + 1] - indptr[v]
    best, lowest_cost = -1, np.inf
    for j in range(num_candidates):
        p = candidates[j]
        if loads[p] + weights[v] <= max_load and sizes[p] < max_vertices:
            cost = everywhere - saved[p] + (degree - num_saved[p]) * prices[num_parts + p] - leaving
            sent = _sent_from(starts, parts, used, v, p)
            cost += sent * prices[p] - sent_here * prices[a] + also_here
            if sent < used[v]:
                cost -= prices[num_parts + p]
            if cost < lowest_cost or (cost == lowest_cost and loads[p] < loads[best]):
                best, lowest_cost = p, cost
        saved[p] = 0.0
        num_saved[p] = 0
        is_candidate[p] = False
    return best, lowest_cost


@_jit
def _find_lightest_available(loads, sizes, max_vertices):
    """Return the lightest part that can take another vertex; -1 if there is none."""
    lightest = -1
    for p in range(len(loads)):
        if sizes[p] < max_vertices and (lightest < 0 or loads[p] < loads[lightest]):
            lightest = p
    return lightest


@_jit
def _sent_from(starts, parts, used, v, part):
    """Return the number of parts to which the row of v is sent if v is in `part`."""
    for i in range(starts[v], starts[v] + used[v]):
        if parts[i] == part:
            return used[v] - 1
    return used[v]


@_jit
def _add_rows(direction, rows, traffic, changed):
    """Change the number of rows of a direction and record its previous value in `changed`."""
    before, is_changed, directions, num = changed
    if not is_changed[direction]:
        is_changed[direction] = True
        before[direction] = traffic[direction]
        directions[num[0]] = direction
        num[0] += 1
    traffic[direction] += rows


@_jit
def _move(v, to, graph, homes, near, held, weights, traffic, pricing, changed):
    """Move a vertex to another part and update traffic and prices; return the change in cost."""
    indptr, indices = graph
    starts, parts, counts, used = near
    loads, sizes = held
    a, num_parts = homes[v], len(loads)
    sent_here = _sent_from(starts, parts, used, v, a)
    sent_there = _sent_from(starts, parts, used, v, to)
    _add_rows(a, -sent_here, traffic, changed)
    _add_rows(to, sent_there, traffic, changed)
    if sent_here < used[v]:
        _add_rows(num_parts + a, 1, traffic, changed)
    if sent_there < used[v]:
        _add_rows(num_parts + to, -1, traffic, changed)
    homes[v] = to
    loads[a] -= weights[v]
    loads[to] += weights[v]
    sizes[a] -= 1
    sizes[to] += 1
    for e in range(indptr[v], indptr[v + 1]):
        u = indices[e]
        home = homes[u]
        if remove_neighbor(starts, parts, counts, used, u, a) and home != a:
            _add_rows(home, -1, traffic, changed)
            _add_rows(num_parts + a, -1, traffic, changed)
        if add_neighbor(starts, parts, counts, used, u, to) and home != to:
            _add_rows(home, 1, traffic, changed)
            _add_rows(num_parts + to, 1, traffic, changed)
    scale, power, prices = pricing
    before, is_changed, directions, num = changed
    added = 0.0
    for i in range(num[0]):
        q = directions[i]
        added += _cost(traffic[q], scale, power) - _cost(before[q], scale, power)
        prices[q] = _price(traffic[q], scale, power)
        is_changed[q] = False
    num[0] = 0
    return added


@_jit
def _scratch(num_parts):
    """Return buffers for the parts that have neighbours of a vertex, and for the changed directions."""
    saved = (np.zeros(num_parts), np.zeros(num_parts, np.int64))
    move_scratch = (*saved, np.zeros(num_parts, np.bool_), np.empty(num_parts, np.int64))
    before = np.empty(2 * num_parts, np.int64)
    directions = np.empty(2 * num_parts, np.int64)
    return move_scratch, (before, np.zeros(2 * num_parts, np.bool_), directions, np.zeros(1, np.int64))


@_jit
def _greedy_pass(graph, homes, near, held, weights, bounds, traffic, power, order, is_due):
    """Move each due vertex to its cheapest part in one pass; return the number of moves."""
    indptr, indices = graph
    scale, prices = _prices(traffic, power)
    pricing = (scale, power, prices)
    scratch, changed = _scratch(len(held[0]))
    loads, _ = held
    moves = 0
    for v in order:
        if not is_due[v]:
            continue
        is_due[v] = False
        a = homes[v]
        best, cost = _best_move(v, graph, homes, near, held, weights, bounds, prices, scratch)
        if best < 0:
            continue
        # To avoid oscillation, accept moves without gain only from a heavier to a lighter part.
        if cost > _GAIN or (cost > -_GAIN and loads[a] - weights[v] <= loads[best] + weights[v]):
            continue
        added = _move(v, best, graph, homes, near, held, weights, traffic, pricing, changed)
        if added > max(cost, 0.0) + _GAIN:
            # The move has increased prices so much that it costs more than it saves, so revert it.
            _move(v, a, graph, homes, near, held, weights, traffic, pricing, changed)
            continue
        for e in range(indptr[v], indptr[v + 1]):
            is_due[indices[e]] = True
        is_due[v] = True
        moves += 1
    return moves


@_jit
def _balancing_pass(graph, homes, near, held, weights, bounds, traffic, power, counts_vertices):
    """Move vertices out of parts that are too heavy at any price, in ascending order of cost per weight.

    If `counts_vertices`, move vertices out of parts with too many vertices instead, in ascending order of
    cost.
    """
    scale, prices = _prices(traffic, power)
    pricing = (scale, power, prices)
    scratch, changed = _scratch(len(held[0]))
    queue = [(0.0, np.int64(-1))]
    queue.clear()
    for u in range(len(homes)):
        if _has_too_much(homes[u], held, bounds, counts_vertices):
            best, cost = _best_move(u, graph, homes, near, held, weights, bounds, prices, scratch)
            if best >= 0:
                queue.append((cost / (1.0 if counts_vertices else weights[u]), np.int64(u)))
    heapq.heapify(queue)
    while len(queue):
        before, v = heapq.heappop(queue)
        if not _has_too_much(homes[v], held, bounds, counts_vertices):
            continue
        best, cost = _best_move(v, graph, homes, near, held, weights, bounds, prices, scratch)
        if best < 0:
            continue
        cost /= 1.0 if counts_vertices else weights[v]
        if cost > before + _GAIN:
            heapq.heappush(queue, (cost, v))
            continue
        _move(v, best, graph, homes, near, held, weights, traffic, pricing, changed)


@_jit
def _has_too_much(part, held, bounds, counts_vertices):
    loads, sizes = held
    return sizes[part] > bounds[2] if counts_vertices else loads[part] > bounds[1]


@_jit
def _search_pass(graph, homes, near, held, weights, bounds, traffic, power, order, patience, max_edges):
    """Search from each boundary vertex, through states that may be worse; return the number of successful
    searches.

    A search repeatedly moves the cheapest neighbour of the vertices that it has moved, each vertex once,
    until the best sum of costs is more than `patience` moves old. It then reverts the moves after the best
    sum (algorithm of Fiduccia and Mattheyses, from many small starts). No search begins after `max_edges`
    edges have been examined, or if too few of the previous searches succeeded.
    """
    indptr, indices = graph
    scale, prices = _prices(traffic, power)
    pricing = (scale, power, prices)
    scratch, changed = _scratch(len(held[0]))
    moved_in = np.full(len(homes), -1, np.int32)
    vertices, froms = np.empty(_LONGEST, np.int64), np.empty(_LONGEST, np.int32)
    found = seen = 0
    for search, start in enumerate(order):
        if seen > max_edges or (seen > _TRIAL and found * _WORTH_EDGES < seen):
            break
        if near[3][start] < 2:
            continue
        best, cost = _best_move(start, graph, homes, near, held, weights, bounds, prices, scratch)
        if best < 0:
            continue
        queue = [(cost, np.int64(start))]
        total = lowest = 0.0
        num = at = 0
        while len(queue) and num < _LONGEST and num - at <= patience:
            before, v = heapq.heappop(queue)
            if moved_in[v] == search:
                continue
            best, cost = _best_move(v, graph, homes, near, held, weights, bounds, prices, scratch)
            if best < 0:
                continue
            if cost > before + _GAIN:
                heapq.heappush(queue, (cost, v))
                continue
            vertices[num], froms[num] = v, homes[v]
            moved_in[v] = search
            total += _move(v, best, graph, homes, near, held, weights, traffic, pricing, changed)
            num += 1
            if total < lowest - _GAIN:
                lowest, at = total, num
            degree = indptr[v + 1] - indptr[v]
            seen += 3 * degree
            step = max(1, degree // _WIDEST)
            for e in range(indptr[v], indptr[v + 1], step):
                u = indices[e]
                if moved_in[u] != search and near[3][u] > 1:
                    seen += indptr[u + 1] - indptr[u]
                    best, cost = _best_move(u, graph, homes, near, held, weights, bounds, prices, scratch)
                    if best >= 0:
                        heapq.heappush(queue, (cost, np.int64(u)))
        for i in range(num - 1, at - 1, -1):
            _move(vertices[i], froms[i], graph, homes, near, held, weights, traffic, pricing, changed)
        if at:
            found += 1
    return found


# Phases: exponent of the prices, and additional tolerance of the weight bound.
# With more tolerance, vertices with many edges can move. Later phases restore the bound.
_PHASES = (
    (0, 0.2), (4, 0.1), (8, 0.05), (12, 0.02), (16, 0), (24, 0.02), (24, 0), (32, 0.02), (32, 0), (48, 0.02),
    (48, 0), (64, 0),
)  # fmt: skip
# Large graphs have fewer phases (at least three), so that about _LOOKS edges are examined (twice per phase).
# For graphs with up to _SMALL edges, all phases run _ROUNDS times with different vertex orders.
_LOOKS = 300e6
_SMALL = 1 << 20
_ROUNDS = 3
# Minimum weight of a part relative to the mean. No vertex moves out if the part would become lighter.
_MIN_SHARE_OF_MEAN = 0.5
_PASSES = 4
# Limits of the searches in each phase: number of examined edges, and moves without gain per search.
_MAX_EDGES = 1 << 22
_PATIENCE = 8
# A phase ends after a pass that moves at most this fraction of the vertices.
_FEW = 0.0005
_ROUNDING = 1e-12


def refine_parts(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    part_ids: NDArray[Any],
    weights: NDArray[np.float64],
    num_parts: int,
    max_over_mean: float,
    seed: int,
    max_vertices: int | None = None,
) -> NDArray[np.int32]:
    """Return a partition with less traffic in the busiest direction and in total, or the given partition.

    If the given partition is within the bounds, the busiest direction never has more rows than there.

    Edges are CSR by destination, without duplicates and self-loops. `part_ids` [V] are the initial part
    indices, below 1,024. `weights` [V] are float64. `max_over_mean` is the maximum weight of a part relative
    to the mean: vertices move out of heavier parts at any price. `max_vertices`, at least V / num_parts, is
    the maximum number of vertices in a part, which has precedence over weight and traffic; None for no bound.
    `seed` determines the order of vertices.
    """
    part_ids = part_ids.astype(np.int32)
    counted = NeighborPartCounts(indptr, indices, part_ids, num_parts)
    near = (counted.starts, counted.parts, counted.counts, counted.used)
    traffic = count_traffic(counted.starts, counted.parts, counted.used, part_ids, num_parts)
    busiest_at_first = traffic.max()
    loads = np.bincount(part_ids, weights, minlength=num_parts)
    sizes = np.bincount(part_ids, minlength=num_parts)
    mean, max_vertices = loads.mean(), max_vertices or len(part_ids)
    generator = np.random.default_rng(seed)
    is_due = np.empty(len(part_ids), np.bool_)
    graph, held = (indptr, indices), (loads, sizes)

    def figures() -> tuple[float, ...]:
        """Return a tuple that is smaller for better partitions. It begins with the excess over the bounds."""
        # Allow for rounding of the mean, because the given partition may be exactly at the bound.
        allowed = max_over_mean * mean * (1 + _ROUNDING)
        busiest = traffic.max()
        bounded = max(sizes.max(), max_vertices), max(loads.max(), allowed), max(busiest, busiest_at_first)
        return *bounded, 2 * busiest + traffic.mean()

    # Record the best partition, because later moves may exceed a tight bound for good.
    best, best_figures = part_ids.copy(), figures()
    for power, looser in _phases(len(indices)):
        bounds = (
            _MIN_SHARE_OF_MEAN * mean,
            (max_over_mean + looser) * mean,
            int((1 + looser) * max_vertices),
        )
        state = (graph, part_ids, near, held, weights, bounds, traffic)
        order = generator.permutation(len(part_ids))
        is_due[:] = True
        if loads.max() > bounds[1]:
            # If parts are full, swap a heavy vertex for light ones, which later move back.
            _balancing_pass(*state[:5], (*bounds[:2], len(part_ids)), traffic, power, False)
        for heaviest in (bounds[1], np.inf):
            if sizes.max() > bounds[2]:
                _balancing_pass(*state[:5], (0.0, heaviest, bounds[2]), traffic, power, True)
        for _ in range(_PASSES):
            if _greedy_pass(*state, power, order, is_due) <= _FEW * len(part_ids):
                break
        starts = generator.permutation(np.flatnonzero(counted.used > 1))
        _search_pass(*state, power, starts, _PATIENCE, _MAX_EDGES)
        found = figures()
        if found < best_figures:
            best, best_figures = part_ids.copy(), found
    return best


def _phases(num_edges: int) -> list[tuple[int, float]]:
    """Return the phases for a number of edges, which include the first and the last phase."""
    if num_edges <= _SMALL:
        return _ROUNDS * list(_PHASES)
    num = int(np.clip(_LOOKS / (2 * num_edges), 3, len(_PHASES)))
    return [_PHASES[round(i)] for i in np.linspace(0, len(_PHASES) - 1, num)]
