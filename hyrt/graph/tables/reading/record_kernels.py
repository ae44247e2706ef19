"""Compiled scanner that finds the records of a text by the rules of Arrow's CSV parser."""

from __future__ import annotations

from hyrt.runtime.numba_cache import nb

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
