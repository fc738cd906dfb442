"""Origins of the elements of a move, against a look at each of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from raptor.graph.rearrangement import MOSTLY, MoveOrigins
from raptor.target.tensor_layout import Image

OPERANDS = Image((1, 2, 3, 4), 1), Image((5, 3), 1)
ELEMENTS = sum(image.elements for image in OPERANDS)
RESULT = Image((1, 3, 4, 5), 1)


def origin(element: int) -> tuple[int, int, int, int]:
    """Operand, line, column and channel of an element, counted pixel by pixel."""
    for t, image in enumerate(OPERANDS):
        if element < image.elements:
            pixel, channel = divmod(element, image.channels)
            return t, *divmod(pixel, image.width), channel
        element -= image.elements
    raise AssertionError


@given(arrays.arrays(np.int64, (20, 3), elements=st.integers(-1, ELEMENTS - 1)), st.integers(0, 4), st.integers(1, 5))
def test_origins(sources: np.ndarray, first: int, count: int):
    cols = first, min(5, first + count)
    places = MoveOrigins.from_sources(sources, RESULT, OPERANDS)
    wanted = sources.reshape(4, 5, 3)
    read: dict[tuple[int, int], set[int]] = {}
    for place, element in np.ndenumerate(wanted):
        if element < 0:
            assert places.tensor[place] == -1
            continue
        found = tuple(int(a[place]) for a in (places.tensor, places.line, places.col, places.channel))
        assert found == origin(int(element))
        if cols[0] <= place[1] < cols[1]:
            read.setdefault(found[:2], set()).add(found[2])
    most = max(len({origin(int(e))[:2] for e in line.flat if e >= 0}) for line in wanted)
    assert places.most_lines("ab") == most
    once = max(len({origin(int(e))[1] for e in line.flat if e >= 0}) for line in wanted)
    assert places.most_lines("aa") == once, "of a tensor that is read twice, a line counts once"
    together = {key: (min(own), max(own) + 1) for key, own in read.items()}
    dense = {key: (low, high) for key, (low, high) in together.items() if len(read[key]) >= MOSTLY * (high - low)}
    assert places.columns_read(cols) == dense
