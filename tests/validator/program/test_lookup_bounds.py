"""Addresses that are affine in a number known at run time, against all numbers of their range, one by one."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest

from raptor.output.files import TablePlace
from raptor.target.computed_loads import ComputedLoadError
from raptor.target.isa import OPCODE, Records
from tests.validator.builder import address, op, stream
from validator.program.lookup_bounds import find_row_counts

SEGMENT = 2**32
"""Bytes that the low word of an address reaches."""


def load(stride: int, base: int, size: int) -> Records:
    """A core that loads `size` bytes from base + stride * a number in global memory."""
    low = np.int64(base % SEGMENT).astype(np.uint32).astype(np.int32)
    return stream(
        address(4, 0),
        address(5, 0),
        address(10, base // SEGMENT),
        address(0, 0),
        op("sld", rd=8, rs1=4),
        op("smuli", rd=9, rs1=8, imm=stride),
        op("saddi", rd=11, rs1=9, imm=int(low)),
        op("ld", rd=0, rs1=10, size=size),
    )


def reached(records: Records, number: int) -> int:
    """Returns the address of the load for a number: scalar instructions keep 32 bits of their results."""
    times, add = (int(records["a"][records["opcode"] == OPCODE[name]][0]) for name in ("smuli", "saddi"))
    return int(records["a"][2]) * SEGMENT + (number * times + add) % SEGMENT


def allowed(records: Records, tables: Sequence[TablePlace]) -> int:
    """Returns the rows of the longest table that holds what every number below its rows loads; 0 if there is none."""
    size = int(records["d"][-1])

    def holds(table: TablePlace) -> bool:
        starts = (reached(records, number) for number in range(table.rows))
        end = table.address + table.rows * table.stride
        return all(table.address <= start and start + size <= end for start in starts)

    return max((table.rows for table in tables if holds(table)), default=0)


def cases(count: int) -> Iterator[tuple[Records, list[TablePlace]]]:
    """Yields loads from one or two tables: some that fit, and the same with numbers that are a little wrong."""
    rng = Random(0)
    for _ in range(count):
        tables, start = list[TablePlace](), rng.choice([0, 8, SEGMENT - rng.randint(1, 60), 3 * SEGMENT - 4])
        for _ in range(rng.randint(1, 2)):
            tables.append(TablePlace(address=start, rows=rng.randint(1, 6), stride=rng.randint(1, 8)))
            start = tables[-1].end_address + rng.choice([0, 0, 3])
        table = rng.choice(tables)
        size, stride = rng.randint(1, table.stride), table.stride
        base = table.address + rng.randint(0, table.stride - size)
        if rng.random() < 0.3:  # the rows from the last one to the first one
            base, stride = base + stride * (table.rows - 1), -stride
        if rng.random() < 0.6:
            change, kind = rng.choice([-2, -1, 1, 2, table.stride]), rng.randrange(4)
            size += abs(change) * (kind == 0)
            stride += change * (kind == 1)
            base = max(0, base + change * (kind == 2))
            stride = rng.choice([-(2**31), 2**31 - 1, 2**30]) if kind == 3 and rng.random() < 0.2 else stride
        yield load(stride, base, size), tables


def test_a_load_is_allowed_if_no_number_of_its_range_leaves_the_table() -> None:
    verdicts = [0, 0]
    for records, tables in cases(900):
        wanted = allowed(records, tables)
        try:
            found = int(find_row_counts(records, tables)[0])
        except ComputedLoadError:
            found = 0
        assert found == wanted, (records, tables)
        verdicts[wanted > 0] += 1
    assert min(verdicts) > 200


@pytest.mark.parametrize(
    ("stride", "base", "size", "is_allowed"),
    [
        (8, 64, 8, True),
        (8, 65, 8, False),
        (8, 63, 8, False),
        (8, 64, 9, False),
        (9, 64, 8, False),
        (-8, 64 + 8 * 3, 8, True),
        (-8, 64 + 8 * 2, 8, False),
        (0, 64, 32, True),
        (2**31 - 1, 64, 1, False),
    ],
)
def test_the_ends_of_a_table(stride: int, base: int, size: int, is_allowed: bool) -> None:
    table = TablePlace(address=64, rows=4, stride=8)
    if is_allowed:
        assert find_row_counts(load(stride, base, size), [table]).tolist() == [4]
    else:
        with pytest.raises(ComputedLoadError, match=r"no table of memory\.json has its rows there"):
            find_row_counts(load(stride, base, size), [table])
