"""Instructions of each operation: exactly the products and vector operations that are needed."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.codegen.pimsim import generate
from raptor.common.errors import VerifyError
from raptor.graph.window import Window
from raptor.mapping.decision import Matrix
from raptor.pim.ir import ArrayGroup, CoreProgram, PimProgram
from raptor.pim.operations import Buffer, Load, Repeat, Store
from raptor.spatial.operations import ApplyFilters, Operation, Pool, Vector
from tests.pim.programs import at_addresses, of_operations
from tests.pipeline import Executed, chip, executed
from tests.values import replace

BITS = 16
BYTES = 2
ARCH = chip((8, 8), xbars_per_core=64, cell_bits=16, bits=BITS)


def buffer(name: str, elements: int) -> Buffer:
    """A buffer of one pixel."""
    return Buffer(name, 1, 1, elements)


def emitted(operation: Operation[Buffer], **addresses: int) -> list[Executed]:
    """The instructions of one operation, buffers at these addresses (elements)."""
    first = Load(buffer("load", 1), 0)
    groups = tuple(ArrayGroup("y", Matrix(t, (0, 8), (0, 8), 1)) for t in range(64))
    placed = {name: at * BYTES for name, at in addresses.items()}
    core = CoreProgram(0, groups, of_operations(first, operation), None, 10**6)
    core = at_addresses(core, {"load": 0, **placed})
    stream = generate(PimProgram("tiny", {0: core}, 0, ()), ARCH).cores[0]
    return [e for e in executed(stream.records) if e.pc >= stream.step_ends[1]]


@st.composite
def windows(draw: Callable[..., int]) -> Window:
    """Any padding (also wider than the kernel), stride and dilation, before and behind."""
    spatial: list[tuple[int, ...]] = []
    for _ in range(2):
        size, kernel, stride, dilation = (draw(st.integers(1, high)) for high in (6, 4, 3, 3))
        before, behind = (draw(st.integers(0, kernel + 1)) for _ in range(2))
        reach = dilation * (kernel - 1) + 1
        missing = max(0, reach - (size + before + behind))
        out = (size + before + behind + missing - reach) // stride + 1
        spatial.append((size, out, kernel, stride, before, dilation))
    return Window(*zip(*spatial, strict=True), batch=draw(st.integers(1, 2)))


def reads(window: Window) -> Iterator[tuple[int, int, int]]:
    """(output pixel, tap, input pixel) of every tap inside the image, by plain counting."""
    (rows, cols), (out_rows, out_cols), (tall, wide) = window.in_dims, window.out_dims, window.kernel
    for n, i, j in product(range(window.batch), range(out_rows), range(out_cols)):
        for ki, kj in product(range(tall), range(wide)):
            row = i * window.strides[0] - window.pads[0] + ki * window.dilations[0]
            col = j * window.strides[1] - window.pads[1] + kj * window.dilations[1]
            if 0 <= row < rows and 0 <= col < cols:
                yield (n * out_rows + i) * out_cols + j, ki * wide + kj, (n * rows + row) * cols + col


IN_CHANNELS, OUT_CHANNELS, CHANNEL = 5, 3, 2
IN_AT, OUT_AT, ACCUM_AT = 10, 5000, 9000


def apply_filters(window: Window, taps: tuple[int, ...]) -> ApplyFilters[Buffer]:
    """Reads from the third of five channels; group 2t holds tap t."""
    return ApplyFilters(
        result=Buffer("out", window.batch * window.out_dims[0], window.out_dims[1], OUT_CHANNELS),
        input=Buffer("in", window.batch * window.in_dims[0], window.in_dims[1], IN_CHANNELS),
        weights=tuple(2 * t for t in taps),
        taps=taps,
        channel=CHANNEL,
        window=window,
        relu=False,
    )


@st.composite
def filters(draw: Callable[..., int]) -> ApplyFilters[Buffer]:
    """Draws some of a window's kernel positions, as one core may hold them."""
    window = draw(windows())
    taps = draw(st.lists(st.integers(0, window.tap_count - 1), min_size=1, unique=True))
    return apply_filters(window, tuple(sorted(taps)))


def emitted_filters(op: ApplyFilters[Buffer]) -> list[Executed]:
    addresses = {"in": IN_AT, "out": OUT_AT} | ({"out.accum": ACCUM_AT} if op.scratch else {})
    return emitted(op, **addresses)


def out_pixel(address: int) -> int | None:
    """Returns the pixel of the output buffer; None for the accumulation buffer."""
    offset = address - OUT_AT * BYTES
    assert offset % (OUT_CHANNELS * BYTES) == 0 or address == ACCUM_AT * BYTES
    return None if address == ACCUM_AT * BYTES else offset // (OUT_CHANNELS * BYTES)


def products(instructions: list[Executed]) -> Iterator[tuple[int, int, int]]:
    """(output pixel, tap, input pixel) of every `mvmul`, whose sum goes where it should."""
    for now, behind in zip(instructions, [*instructions[1:], None], strict=True):
        if now.name != "mvmul":
            continue
        pixel = out_pixel(now.rd)
        if pixel is None:
            assert behind is not None
            assert behind.name == "vvadd"
            assert behind.rd == behind.rs1
            assert behind.rs2 == now.rd
            assert behind.record["d"] == OUT_CHANNELS
            pixel = out_pixel(behind.rd)
            assert pixel is not None
        source, channel = divmod(now.rs1 // BYTES - IN_AT, IN_CHANNELS)
        assert channel == CHANNEL
        assert now.record["a"] == BITS
        yield pixel, int(now.record["c"]) // 2, source


@given(filters())
def test_products_are_those_inside_the_image_and_no_others(op: ApplyFilters[Buffer]):
    wanted = [read for read in reads(op.window) if read[1] in op.taps]
    assert list(products(emitted_filters(op))) == wanted


@given(filters())
def test_the_first_product_of_a_pixel_goes_straight_to_the_output(op: ApplyFilters[Buffer]):
    found = emitted_filters(op)
    direct = [out_pixel(e.rd) for e in found if e.name == "mvmul" and out_pixel(e.rd) is not None]
    touched = {pixel for pixel, tap, _ in reads(op.window) if tap in op.taps}
    assert direct == sorted(touched)
    count = sum(e.name == "mvmul" for e in found)
    assert sum(e.name == "vvadd" for e in found) == count - len(touched)
    assert {e.name for e in found} <= {"mvmul", "vvadd", "lldi"}


@given(filters())
def test_pixels_without_a_product_are_zeroed_once(op: ApplyFilters[Buffer]):
    touched = {pixel for pixel, tap, _ in reads(op.window) if tap in op.taps}
    zeroed: list[int] = []
    for e in emitted_filters(op):
        if e.name == "lldi":
            assert int(e.record["a"]) == 0
            first = out_pixel(e.rd)
            assert first is not None
            zeroed += range(first, first + int(e.record["d"]) // (OUT_CHANNELS * BYTES))
    assert zeroed == [p for p in range(op.window.out_pixels) if p not in touched]


SAME = Window((4, 4), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1))


@pytest.mark.parametrize(
    ("window", "count"),
    [
        (SAME, 100),  # 16 pixels of 9, less 24 + 20 in the padding
        (replace(SAME, out_dims=(2, 2), pads=(0, 0)), 36),
        (replace(SAME, out_dims=(2, 2), strides=(2, 2)), 25),
        (replace(SAME, dilations=(2, 2), pads=(2, 2)), 64),
        (replace(SAME, kernel=(1, 1), pads=(0, 0)), 16),
    ],
    ids=["same", "valid", "stride", "dilation", "point"],
)
def test_products_counted_by_hand(window: Window, count: int):
    op = apply_filters(window, tuple(range(window.tap_count)))
    assert sum(e.name == "mvmul" for e in emitted_filters(op)) == count


@pytest.mark.parametrize("relu", [False, True])
def test_the_relu_flag(relu: bool):
    op = replace(apply_filters(Window.pointwise((2, 2)), (0,)), relu=relu)
    assert [int(e.record["b"]) for e in emitted_filters(op)] == [int(relu)] * 4


CHANNELS = 3


def pool(window: Window, function: str = "max") -> Pool[Buffer]:
    source = Buffer("in", window.batch * window.in_dims[0], window.in_dims[1], CHANNELS)
    result = Buffer("out", window.batch * window.out_dims[0], window.out_dims[1], CHANNELS)
    return Pool(result, ((0, source),), function, window)


def emitted_pool(op: Pool[Buffer]) -> list[Executed]:
    return emitted(op, **{"in": IN_AT, "out": OUT_AT})


@given(windows())
def test_pooling_reads_each_tap_once(window: Window):
    """Two taps take one vector operation, each further tap one more; a single tap is copied, no tap is zero."""
    taps = np.bincount([pixel for pixel, _, _ in reads(window)], minlength=window.out_pixels)
    found = emitted_pool(pool(window, "sum"))
    elements = dict.fromkeys(("vvadd", "lmv", "lldi"), 0)
    for e in found:
        elements[e.name] += int(e.record["d"])
    assert elements["vvadd"] == CHANNELS * np.maximum(taps - 1, 0).sum()
    assert elements["lmv"] == CHANNELS * BYTES * (taps == 1).sum()
    assert elements["lldi"] == CHANNELS * BYTES * (taps == 0).sum()


@pytest.mark.parametrize(
    ("window", "count"),
    [
        (Window((4, 4), (3, 3), (2, 2), (1, 1), (0, 0), (1, 1)), 9),  # three steps over three rows
        (Window((4, 4), (2, 2), (2, 2), (2, 2), (0, 0), (1, 1)), 12),  # three steps over four pixels
        (Window((4, 4), (1, 1), (4, 4), (4, 4), (0, 0), (1, 1)), 15),
        (Window((4, 4), (3, 4), (2, 1), (1, 1), (0, 0), (1, 1)), 1),  # rows follow one another
        (Window((4, 4), (4, 4), (1, 1), (1, 1), (0, 0), (1, 1)), 1),  # one copy
    ],
    ids=["stride 1", "stride 2", "global", "column", "point"],
)
def test_pooling_goes_over_runs_of_pixels(window: Window, count: int):
    assert len(emitted_pool(pool(window))) == count


def test_a_maximum_over_padding_alone_is_refused():
    window = Window((2, 2), (2, 2), (1, 1), (1, 1), (2, 2), (1, 1))
    with pytest.raises(VerifyError, match="a window of a maximum lies in the padding"):
        emitted_pool(pool(window))


def test_a_vector_operation_of_whole_buffers_is_one_instruction():
    a, b, out = (buffer(name, 12) for name in ("a", "b", "out"))
    (add,) = emitted(Vector(out, "add", (a, b)), a=20, b=40, out=60)
    assert (add.name, add.rd, add.rs1, add.rs2) == ("vvadd", 120, 40, 80)
    assert int(add.record["d"]) == 12


@pytest.mark.parametrize("swapped", [False, True])
def test_an_operand_that_repeats(swapped: bool):
    whole, row, out = buffer("a", 12), buffer("b", 4), buffer("out", 12)
    operands = (row, whole) if swapped else (whole, row)
    found = emitted(Vector(out, "sub", operands), a=20, b=40, out=60)
    assert [(e.name, e.rd, int(e.record["d"])) for e in found] == [("vvsub", 120 + 8 * i, 4) for i in range(3)]
    read = [(e.rs2, e.rs1) if swapped else (e.rs1, e.rs2) for e in found]
    assert read == [(40 + 8 * i, 80) for i in range(3)]


def test_one_element_is_repeated_by_one_move_for_each_row():
    found = emitted(Repeat(Buffer("out", 2, 5, 1), buffer("a", 2)), a=7, out=20)
    assert [(e.name, e.rd, e.rs1, e.rs2, int(e.record["d"])) for e in found] == [
        ("vmv", 40, 14, 0, 5),
        ("vmv", 50, 16, 0, 5),
    ]


@given(length=st.integers(2, 9), times=st.integers(1, 20))
def test_repeating_copies_what_is_there_already(length: int, times: int):
    found = emitted(Repeat(buffer("out", length * times), buffer("a", length)), a=2, out=500)
    memory: dict[int, int] = {2 + i: i for i in range(length)}
    for e in found:
        count = int(e.record["d"]) // BYTES
        assert e.rs1 // BYTES + count <= e.rd // BYTES or e.rd < e.rs1, "source and target overlap"
        memory |= {e.rd // BYTES + i: memory[e.rs1 // BYTES + i] for i in range(count)}
    assert [memory[500 + i] for i in range(length * times)] == list(range(length)) * times
    assert len(found) <= 1 + int(np.ceil(np.log2(times)))


@pytest.mark.parametrize("address", [0, 5, 2**30, 2**31, 2**33 + 3])
def test_global_addresses_have_two_words(address: int):
    """High word in r4, low word in r5; local addresses are offsets."""
    for operation in (Load(buffer("a", 3), address * BYTES), Store(buffer("a", 3), address * BYTES)):
        (found,) = emitted(operation, a=7)
        high = found.rs1 if found.name == "ld" else found.rd
        assert high == address * BYTES >> 32
        assert (int(found.record["c"]), int(found.record["d"])) == (14, 6)


def test_the_low_word_of_a_global_address():
    core = CoreProgram(0, (), of_operations(Load(buffer("a", 1), 2**32 - 2)), np.zeros(1, np.int64), 2)
    stream = generate(PimProgram("tiny", {0: core}, 0, ()), ARCH).cores[0]
    loads = {int(r["rd"]): int(r["a"]) for r in stream.records if r["opcode"] == 1}
    # 2**32 - 2 as a signed word
    assert (loads[4], loads[5]) == (0, -2)
