"""Compiled loops of a table import: parsers of numbers and records, hash table of names, edge rows."""

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import GOLDEN, mix64

_PLUS, _MINUS, _POINT, _ZERO, _NINE, _UPPER_E, _LOWER_E = 43, 45, 46, 48, 57, 69, 101
_MAX_DIGITS = 18


@nb.njit(nogil=True, cache=True, boundscheck=False)
def read_whole(data, offsets, missing, decimal, values, bad):  # type: ignore[no-untyped-def]
    """Parse strings [n] into values [n] int64; set bad [n] for strings that are not canonical integers.

    `007`, `+1`, `-0`, ` 7` and non-ASCII digits are not canonical. A decimal point followed by zeros is
    accepted, because programs write 3.0 for 3.
    """
    for n in range(len(values)):
        values[n] = 0
        bad[n] = False
        if missing[n]:
            continue
        i, last = offsets[n], offsets[n + 1]
        is_negative = i < last and data[i] == _MINUS
        i += is_negative
        first, value = i, np.int64(0)
        while i < last and _ZERO <= data[i] <= _NINE and i - first <= _MAX_DIGITS:
            value = value * 10 + (data[i] - _ZERO)
            i += 1
        digits = i - first
        is_good = 0 < digits <= _MAX_DIGITS
        if is_good and data[first] == _ZERO:
            is_good = digits == 1 and not is_negative
        if i < last:
            is_good = is_good and data[i] == decimal
            for j in range(i + 1, last):
                is_good = is_good and data[j] == _ZERO
        if is_good:
            values[n] = -value if is_negative else value
        else:
            bad[n] = True


_TAB, _NEWLINE, _RETURN, _SPACE = 9, 10, 13, 32
_LINE_START, _FIELD_START, _IN_FIELD, _IN_QUOTES = 0, 1, 2, 3


@nb.njit(nogil=True, cache=True, boundscheck=False)
def find_records(data, delimiter, quote, line, lines):  # type: ignore[no-untyped-def]
    """Write the line number where each record begins.

    Returns the number of records, and the end of the last complete one. A quote is recognized only at the
    start of a value, after spaces or tabs; characters between the closing quote and the delimiter belong to
    the value. Blank lines are not records. `quote` is -1 if there is none.
    """
    state, records, end = _LINE_START, 0, 0
    i, size = 0, len(data)
    while i < size:
        letter = data[i]
        if state == _LINE_START:
            if letter in (_NEWLINE, _RETURN):
                line += letter == _NEWLINE
                i += 1
                end = i
                continue
            lines[records] = line
            records += 1
            state = _FIELD_START
        if state == _FIELD_START:
            if letter == quote:
                state = _IN_QUOTES
                i += 1
                continue
            if letter in (_TAB, _SPACE) and letter != delimiter:
                i += 1
                continue
            state = _IN_FIELD
        if state == _IN_QUOTES:
            line += letter == _NEWLINE
            if letter == quote:
                if i + 1 < size and data[i + 1] == quote:
                    i += 1
                else:
                    state = _IN_FIELD
            i += 1
        elif letter in (_NEWLINE, _RETURN):
            if letter == _RETURN and i + 1 < size and data[i + 1] == _NEWLINE:
                i += 1
                letter = data[i]
            line += letter == _NEWLINE
            i += 1
            end, state = i, _LINE_START
        else:
            if letter == delimiter:
                state = _FIELD_START
            i += 1
    return records, end


@nb.njit(nogil=True, cache=True, boundscheck=False)
def strip_padding(data, delimiter, quote, out):  # type: ignore[no-untyped-def]
    """Copy text to `out` without the spaces and tabs around values, except within quotes.

    Returns the number of bytes written, and the number of padded values. Line breaks are kept, so that line
    numbers do not change.
    """
    state, size, end, padded, i = _FIELD_START, 0, 0, 0, 0
    is_padded = False
    while i < len(data):
        letter = data[i]
        i += 1
        is_padding = letter in (_TAB, _SPACE) and letter != delimiter
        if state == _FIELD_START:
            if is_padding:
                is_padded = True
                continue
            state = _IN_QUOTES if letter == quote else _IN_FIELD
            if state == _IN_QUOTES:
                out[size] = letter
                size += 1
                continue
        if state == _IN_FIELD and (letter == delimiter or letter in (_NEWLINE, _RETURN)):
            padded += is_padded or end < size
            is_padded, state = False, _FIELD_START
            out[end] = letter
            size = end = end + 1
            continue
        out[size] = letter
        size += 1
        if state == _IN_FIELD:
            end = end if is_padding else size
        elif letter == quote:
            if i < len(data) and data[i] == quote:
                out[size] = letter
                size += 1
                i += 1
            else:
                state, end = _IN_FIELD, size
    if state == _IN_QUOTES:
        end = size
    return end, padded + (is_padded or end < size)


_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def hash_bytes(data, first, last):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of the bytes first..last-1."""
    hashed = np.uint64(last - first) * GOLDEN
    for i in range(first, last):
        hashed = (hashed ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return mix64(hashed)


@_compile
def find_slot(data, first, last, slots, name_bytes, ends):  # type: ignore[no-untyped-def]
    """Return the slot of a name, or the empty slot for it; the number of slots is a power of two."""
    mask = len(slots) - 1
    slot = np.int64(hash_bytes(data, first, last) & np.uint64(mask))
    while slots[slot] >= 0:
        begin = ends[slots[slot]]
        if ends[slots[slot] + 1] - begin == last - first:
            same = True
            for i in range(last - first):
                if name_bytes[begin + i] != data[first + i]:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@_compile
def find_names(data, offsets, missing, slots, name_bytes, ends, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name; -1 for unknown and missing names."""
    for i in range(len(out)):
        out[i] = -1
        if not missing[i]:
            out[i] = slots[find_slot(data, offsets[i], offsets[i + 1], slots, name_bytes, ends)]


@_compile
def add_names(data, offsets, missing, slots, name_bytes, ends, num, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name, number new names from `num` on, and return the new number of names."""
    for i in range(len(out)):
        out[i] = -1
        if missing[i]:
            continue
        first, last = offsets[i], offsets[i + 1]
        slot = find_slot(data, first, last, slots, name_bytes, ends)
        if slots[slot] < 0:
            slots[slot] = num
            begin = ends[num]
            for j in range(last - first):
                name_bytes[begin + j] = data[first + j]
            ends[num + 1] = begin + last - first
            num += 1
        out[i] = slots[slot]
    return num


@_compile
def find_odd_numbers(name_bytes, ends, is_odd):  # type: ignore[no-untyped-def]
    """Mark the names that have the letters of a number, and a point, an exponent, a plus or a leading zero.

    Returns whether there are any.
    """
    found = False
    for number in range(len(is_odd)):
        first, last = ends[number], ends[number + 1]
        digits, others, is_number = 0, 0, True
        for i in range(first, last):
            letter = name_bytes[i]
            if _ZERO <= letter <= _NINE:
                others += letter == _ZERO and digits == 0 and i + 1 < last
                digits += 1
            elif letter in (_POINT, _PLUS, _LOWER_E, _UPPER_E):
                others += 1
            elif letter != _MINUS:
                is_number = False
                break
        is_odd[number] = is_number and digits > 0 and (others > 0 or name_bytes[first] == _MINUS)
        found |= is_odd[number]
    return found


@_compile
def fill_slots(name_bytes, ends, num, slots):  # type: ignore[no-untyped-def]
    """Insert the numbers of all names into empty slots."""
    mask = len(slots) - 1
    for number in range(num):
        slot = np.int64(hash_bytes(name_bytes, ends[number], ends[number + 1]) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@_compile
def count_rows(sources, targets, undirected, drop_loops, counts):  # type: ignore[no-untyped-def]
    """Add each target's number of edges to counts [V] and return the number of self loops.

    Edges with a vertex below 0 are skipped.
    """
    loops = 0
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0:
            continue
        if u == v:
            loops += 1
            if drop_loops:
                continue
        counts[v] += 1
        if undirected and u != v:
            counts[u] += 1
    return loops


@_compile
def scatter(sources, targets, undirected, drop_loops, low, high, cursor, entries):  # type: ignore[no-untyped-def]
    """Write the edges into vertices low..high-1 to their rows at cursor [high-low], which advances."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0 or (u == v and drop_loops):
            continue
        if low <= v < high:
            entries[cursor[v - low]] = u
            cursor[v - low] += 1
        if undirected and u != v and low <= u < high:
            entries[cursor[u - low]] = v
            cursor[u - low] += 1


@_compile
def scatter_numbered(  # type: ignore[no-untyped-def]
    sources, targets, undirected, drop_loops, low, high, cursor, entries, first, numbers
):
    """Like `scatter`; also write the edge numbers, starting at `first`, to `numbers`."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0 or (u == v and drop_loops):
            continue
        if low <= v < high:
            position = cursor[v - low]
            entries[position], numbers[position] = u, first + i
            cursor[v - low] = position + 1
        if undirected and u != v and low <= u < high:
            position = cursor[u - low]
            entries[position], numbers[position] = v, first + i
            cursor[u - low] = position + 1


@_compile
def merge_duplicates(starts, entries, numbers, weights, add_up, counts):  # type: ignore[no-untyped-def]
    """Keep the first of duplicate edges in each row; with `add_up`, it gets the sum of the weights.

    Sets counts [rows] to the remaining row lengths, and returns the remaining number of edges.
    """
    num_edges = 0
    for r in range(len(counts)):
        before = num_edges
        i = starts[r]
        while i < starts[r + 1]:
            j = i + 1
            total = np.float64(weights[i]) if len(weights) else 0.0
            while j < starts[r + 1] and entries[j] == entries[i]:
                if add_up:
                    total += weights[j]
                j += 1
            entries[num_edges], numbers[num_edges] = entries[i], numbers[i]
            if len(weights):
                weights[num_edges] = total
            num_edges += 1
            i = j
        counts[r] = num_edges - before
    return num_edges


@_compile
def find_duplicates(starts, entries, out):  # type: ignore[no-untyped-def]
    """Write the positions of entries that equal their predecessor to `out`, as far as they fit; return their
    total number.
    """
    found = 0
    for r in range(len(starts) - 1):
        for i in range(starts[r] + 1, starts[r + 1]):
            if entries[i] == entries[i - 1]:
                if found < len(out):
                    out[found] = i
                found += 1
    return found
