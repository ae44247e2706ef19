"""A compiled loop over text that finds its records, by the rules of Arrow's parser."""

from __future__ import annotations

from hyrt.machine.kernels.kept_kernels import nb

_NEWLINE, _RETURN = 10, 13
_LINE_START, _FIELD_START, _IN_FIELD, _IN_QUOTES = 0, 1, 2, 3


@nb.njit(nogil=True, cache=True, boundscheck=False)
def find_records(data, delimiter, quote, line, lines):  # type: ignore[no-untyped-def]
    """Write the number of the line in which each record begins.

    Returns how many there are, and where the last whole one ends. A quote counts at the start of a value
    alone; what follows the closing one up to the delimiter belongs to the value. Lines without letters are
    no records. `quote` is -1 where there is none.
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
