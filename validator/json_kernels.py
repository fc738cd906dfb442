"""Compiled scanners of JSON text: find faults that the simulator ignores, and the positions of top-level values."""

# ruff: noqa: C901, SIM109 loops in one piece, and comparisons, compile to faster code than what reads better
# Kernels are untyped for numba's sake; `checks.text` and `members` pass the arrays described.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false

from typing import Any

import numpy as np

from raptor.common.jit import helper, kernel

UNKNOWN_KEY, FRACTION, WRAPPED, OFFSET_VALUE = 1, 2, 4, 8
BUCKETS = 128

_QUOTE, _BACKSLASH, _COLON, _MINUS, _POINT, _ZERO, _NINE = 34, 92, 58, 45, 46, 48, 57
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_UPPER_E, _LOWER_E = 69, 101


@helper
def _spaces(text, at, stop):
    while at < stop and (text[at] == 32 or text[at] == 10 or text[at] == 13 or text[at] == 9):
        at += 1
    return at


@helper
def _string(text, at, stop):
    """Returns the position of the quote that ends a string whose first character is at `at`."""
    while at < stop and text[at] != _QUOTE:
        at += 2 if text[at] == _BACKSLASH else 1
    return min(at, stop)


@helper
def _bucket(text, first, last):
    if last <= first:
        return 0
    return ((last - first) * 7 + np.int64(text[first]) * 3 + np.int64(text[last - 1])) & (BUCKETS - 1)


@kernel
def bucket_of(text: Any) -> int:
    """Returns the place of a key in the table of `scan`."""
    return _bucket(text, 0, text.size)


@helper
def _key(text, first, last, names, bounds, buckets):
    at = _bucket(text, first, last)
    while buckets[at] >= 0:
        index = buckets[at]
        begin, end = bounds[index, 0], bounds[index, 1]
        same = end - begin == last - first
        k = 0
        while same and k < last - first:
            same = names[begin + k] == text[first + k]
            k += 1
        if same:
            return np.int64(index)
        at = (at + 1) & (BUCKETS - 1)
    return np.int64(-1)


@helper
def _number(text, at, stop):
    """Returns the value of a number (cut off), flags of its oddities, and the position after it."""
    negative = text[at] == _MINUS
    at += 1 if negative else 0
    value, odd = np.int64(0), np.uint8(0)
    while at < stop and _ZERO <= text[at] <= _NINE:
        value = min(value * 10 + (np.int64(text[at]) - _ZERO), np.int64(1) << 40)
        at += 1
    if at < stop and (text[at] == _POINT or text[at] == _LOWER_E or text[at] == _UPPER_E):
        odd |= np.uint8(FRACTION)
    value = -value if negative else value
    if value < -(np.int64(1) << 31) or value >= np.int64(1) << 31:
        odd |= np.uint8(WRAPPED)
    return value, odd, at


@kernel
def scan(
    text: Any,
    start: Any,
    stop: Any,
    names: Any,
    bounds: Any,
    buckets: Any,
    offset_value: Any,
    seen: Any,
    odd: Any,
    unknown: Any,
) -> Any:
    """Scans the keys of the objects of a JSON array between `start` and `stop`; returns the number of objects.

    `seen[row]` has a bit for each known key; `odd[row]` flags what the simulator reads differently than it is written.
    `unknown`: first and last position of the first unknown key. Rows beyond the arrays are counted only.
    """
    row, depth, at = np.int64(-1), 0, start
    while at < stop:
        character = text[at]
        if character == _QUOTE:
            last = _string(text, at + 1, stop)
            after = _spaces(text, last + 1, stop)
            if after < stop and text[after] == _COLON and 0 <= row < seen.size and depth <= 2:
                key = _key(text, at + 1, last, names, bounds, buckets)
                after = _spaces(text, after + 1, stop)
                if key < 0:
                    odd[row] |= np.uint8(UNKNOWN_KEY)
                    if unknown[1] == 0:
                        unknown[0], unknown[1] = at + 1, last
                else:
                    seen[row] |= np.int64(1) << key
                    if after < stop and (text[after] == _MINUS or _ZERO <= text[after] <= _NINE):
                        value, strange, after = _number(text, after, stop)
                        odd[row] |= strange
                        if key == offset_value and value != 0:
                            odd[row] |= np.uint8(OFFSET_VALUE)
                at = after
            else:
                at = last + 1
            continue
        if character == _OPEN:
            depth += 1
            if depth == 1:
                row += 1
        elif character == _CLOSE:
            depth -= 1
        at += 1
    return row + 1


@kernel
def top_level(text: Any, start: Any, stop: Any, spans: Any) -> int:
    """Finds the values (first, last) of the members of the object between `start` and `stop`, one row each.

    Returns the number of members, or -1 if it is not an object. Members beyond the rows are counted only. The caller
    must check the text between the values.
    """
    at = _spaces(text, start, stop)
    if at >= stop or text[at] != _OPEN:
        return -1
    count, at = 0, at + 1
    while True:
        at = _spaces(text, at, stop)
        while at < stop and text[at] == 44:
            at = _spaces(text, at + 1, stop)
        if at >= stop or text[at] != _QUOTE:
            return count if at < stop and text[at] == _CLOSE else -1
        at = _spaces(text, _string(text, at + 1, stop) + 1, stop)
        if at >= stop or text[at] != _COLON:
            return -1
        begin = _spaces(text, at + 1, stop)
        at = _value(text, begin, stop)
        if count < spans.shape[0]:
            spans[count, 0], spans[count, 1] = begin, at
        count += 1


@helper
def _value(text, at, stop):
    """Returns the position after a value: after its last bracket, or before the next comma or bracket."""
    depth = 0
    while at < stop:
        character = text[at]
        if character < _QUOTE:
            pass
        elif character == _QUOTE:
            at = _string(text, at + 1, stop)
        elif character == _OPEN or character == _OPEN_LIST:
            depth += 1
        elif character == _CLOSE or character == _CLOSE_LIST:
            if depth == 0:
                return at
            depth -= 1
            if depth == 0:
                return at + 1
        elif character == 44 and depth == 0:
            return at
        at += 1
    return at


@kernel
def matrix_sizes(text: Any, sizes: Any) -> int:
    """Finds rows and columns of the matrices of an object of lists of rows, in the order written.

    Returns the number of matrices, or -1 for anything else. Matrices beyond the rows of `sizes` are counted only.
    Columns are those of the first row.
    """
    count, depth, rows, cols, strings = 0, 0, 0, 0, 0
    for at in range(text.size):
        character = text[at]
        if character > _CLOSE_LIST or (_MINUS <= character <= _NINE):
            continue
        if character == 44:
            if depth == 2 and rows == 1:
                cols += 1
        elif character == _OPEN_LIST:
            depth += 1
            if depth == 2:
                rows += 1
        elif character == _CLOSE_LIST:
            depth -= 1
            if depth == 0:
                if count < sizes.shape[0]:
                    sizes[count, 0], sizes[count, 1] = rows, cols + 1
                count += 1
                rows, cols = 0, 0
        elif character == _QUOTE:
            strings += 1
    return count if strings == 2 * count and depth == 0 else -1
