"""Addresses and reuse of memory, on random programs of one core."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raptor
from raptor.common.errors import CapacityError, VerifyError
from raptor.pim import PimProgram, allocate, memory_warnings, reuse_operands, verify_pim
from raptor.pim.allocate_memory import BufferLifetimes, drop_copies
from raptor.pim.ir import CoreProgram, TensorTrace
from raptor.pim.operations import Buffer, Load, Repeat, Store
from raptor.pim.sample_versions import clear_carried
from raptor.spatial.operations import Move, Operation, Vector
from raptor.spatial.tiles import ShapedValue
from raptor.target.tensor_layout import Image
from tests.pim.programs import of_operations
from tests.pipeline import arch_file, chip, conv_model
from tests.tiny_models import make_model, node

ARCH = chip()


def buffer(name: str, elements: int) -> Buffer:
    """A buffer of one pixel."""
    return Buffer(name, 1, 1, elements)


def program(*operations: Operation[Buffer]) -> PimProgram:
    return PimProgram("tiny", {0: CoreProgram(0, (), of_operations(*operations))}, 0, ())


@st.composite
def lives(draw: Callable[..., int]) -> PimProgram:
    """Buffers of random sizes, each loaded at one step and stored at some later ones."""
    operations: list[Operation[Buffer]] = []
    buffers: list[Buffer] = []
    for i in range(draw(st.integers(1, 25))):
        if buffers and draw(st.booleans()):
            operations.append(Store(draw(st.sampled_from(buffers)), 0))
        else:
            buffers.append(buffer(f"b{i}", draw(st.integers(1, 20))))
            operations.append(Load(buffers[-1], 0))
    return program(*operations)


@dataclass(frozen=True)
class Lifetime:
    """Buffer, and the first and the last step that uses it."""

    buffer: ShapedValue
    first: int
    last: int


def lifetimes(core: CoreProgram) -> list[Lifetime]:
    found = BufferLifetimes.from_core(core)
    rows = zip(found.buffer.tolist(), found.first.tolist(), found.last.tolist(), strict=True)
    return [Lifetime(core.steps.buffers.values[k], first, last) for k, first, last in rows]


def together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


@given(lives())
def test_buffers_alive_together_keep_a_gap(before: PimProgram):
    allocated = allocate(before, ARCH)
    verify_pim(allocated, ARCH)
    core = allocated.cores[0]
    for a, b in combinations(lifetimes(core), 2):
        if together(a, b):
            low, high = sorted((a.buffer, b.buffer), key=core.address)
            assert core.address(low) + low.elements + 1 <= core.address(high)


@given(lives())
def test_memory_used_is_bounded(before: PimProgram):
    """Memory is at least the largest sum of live buffers, at most the sum of all buffers."""
    core = allocate(before, ARCH).cores[0]
    spans = lifetimes(core)
    alive = [sum(s.buffer.elements + 1 for s in spans if s.first <= i <= s.last) for i in range(len(core.steps))]
    assert max(alive) <= core.local_bytes <= sum(s.buffer.elements + 1 for s in spans)
    assert all(core.address(s.buffer) + s.buffer.elements <= core.local_bytes for s in spans)


def test_memory_of_the_dead_is_used_again():
    a, b, c = buffer("a", 10), buffer("b", 10), buffer("c", 10)
    core = allocate(program(Load(a, 0), Load(b, 0), Store(a, 0), Load(c, 0), Store(b, 0), Store(c, 0)), ARCH).cores[0]
    assert core.address(c) == core.address(a)
    assert core.local_bytes == 22


def carrying(*operations: Operation[Buffer]) -> PimProgram:
    """A program whose pass reads buffers first and writes them then, for the next pass."""
    return replace(program(*operations), cores=clear_carried(program(*operations).cores))


def resting() -> tuple[PimProgram, Buffer, Buffer]:
    """A carried buffer, and another one that lives between its last read and its first write."""
    kept, other = buffer("kept", 10), buffer("other", 10)
    steps = Store(kept, 0), Load(other, 0), Store(other, 0), Load(kept, 0), Store(kept, 0)
    return carrying(*steps), kept, other


def test_memory_of_a_carried_buffer_is_free_while_it_rests():
    before, kept, other = resting()
    after = allocate(before, ARCH)
    verify_pim(after, ARCH)
    core = after.cores[0]
    assert core.address(other) == core.address(kept)
    assert core.local_bytes == 11


@pytest.mark.parametrize("read_late", [True, False])
def test_memory_of_a_carried_buffer_is_its_own_while_it_has_a_value(read_late: bool):
    """The other buffer lives until the carried one is read, or has been written."""
    kept, other = buffer("kept", 10), buffer("other", 10)
    steps = (Load(other, 0), Store(kept, 0), Store(other, 0), Load(kept, 0))
    steps = steps if read_late else (Store(kept, 0), Load(other, 0), Load(kept, 0), Store(other, 0))
    assert allocate(carrying(*steps), ARCH).cores[0].local_bytes == 22


def test_a_buffer_in_the_way_of_a_carried_one_is_refused():
    """The other buffer is read after the carried one is written, which has the same memory."""
    allocated, kept, other = resting()
    core = allocate(allocated, ARCH).cores[0]
    late = carrying(Store(kept, 0), Load(other, 0), Load(kept, 0), Store(other, 0))
    with pytest.raises(VerifyError, match="overlaps"):
        verify_pim(replace(late, cores={0: replace(late.cores[0], addresses=core.addresses, local_bytes=11)}), ARCH)


def test_a_carried_buffer_that_no_step_writes_is_refused():
    """It would keep its value for all samples, but its memory would be free between its uses."""
    before, kept, _ = resting()
    core = before.cores[0]
    assert core.steps.buffers.values[int(core.carried[0])].name == kept.name
    once = replace(core, steps=core.steps.select(np.arange(3)))
    with pytest.raises(VerifyError, match="no step of a sample writes it"):
        verify_pim(replace(before, cores={0: once}), ARCH)


def test_a_core_without_work_needs_no_memory():
    assert allocate(program(), ARCH).cores[0].local_bytes == 0


FUNCTIONS = {"add": np.add, "sub": np.subtract, "max": np.maximum, "relu": lambda x: np.maximum(x, 0)}
SIZE = 6


@st.composite
def computations(draw: Callable[..., int]) -> PimProgram:
    """Loads, vector operations of whole or repeating operands, repeats, copies, and stores; some are loaded twice."""
    operations: list[Operation[Buffer]] = []
    whole: list[Buffer] = []
    short: list[Buffer] = []
    for i in range(draw(st.integers(2, 20))):
        kind = draw(
            st.sampled_from(["load", "short", "vector", "vector", "vector", "repeat", "store", "copy", "again"])
        )
        out = buffer(f"b{i}", SIZE // 2 if kind == "short" else SIZE)
        if kind == "short":
            operations.append(Load(out, i))
            short.append(out)
            continue
        if kind == "load" or not whole:
            operations.append(Load(out, i))
        elif kind == "store":
            operations.append(Store(draw(st.sampled_from(whole)), i))
            continue
        elif kind == "again":
            operations.append(Load(draw(st.sampled_from(whole)), i))
            continue
        elif kind == "copy":
            operations.append(copy_of(draw(st.sampled_from(whole)), out, draw(st.sampled_from([SIZE, SIZE, SIZE - 1]))))
        elif kind == "repeat" and short:
            operations.append(Repeat(out, draw(st.sampled_from(short))))
        else:
            operations.append(_vector(draw, out, whole, short))
        whole.append(out)
    return program(*operations, *(Store(last, 100 + i) for i, last in enumerate(whole[-2:])))


def copy_of(source: Buffer, result: Buffer, elements: int) -> Move[Buffer]:
    """A copy of the first elements of a buffer."""
    return Move(result, (source,), np.array([[0, 0, 0, 1, elements]]))


def _vector(draw: Callable[..., int], out: Buffer, whole: list[Buffer], short: list[Buffer]) -> Vector:
    function = draw(st.sampled_from(sorted(FUNCTIONS)))
    first = draw(st.sampled_from(whole))
    if function == "relu":
        return Vector(out, function, (first,))
    return Vector(out, function, (first, draw(st.sampled_from(whole + short))))


def stored(p: PimProgram) -> Iterator[tuple[int, list[float]]]:
    """Executes the program on named buffers and yields the values it stores to global memory."""
    values: dict[str, np.ndarray] = {}
    for step in p.cores[0].steps:
        match step.operation:
            case Load(out, address):
                values[out.name] = np.random.default_rng(address).integers(-9, 9, out.elements)
            case Repeat(out, source):
                values[out.name] = np.resize(values[source.name], out.elements)
            case Vector(out, function, operands):
                arguments = (np.resize(values[o.name], out.elements) for o in operands)
                values[out.name] = FUNCTIONS[function](*arguments)
            case Move(out, (source,), runs):
                values[out.name] = np.where(np.arange(out.elements) < runs[0, 4], values[source.name], 0)
            case Store(source, address):
                yield address, values[source.name].tolist()


@given(computations())
def test_reuse_changes_no_value(before: PimProgram):
    after = reuse_operands(before)
    verify_pim(after, ARCH)
    assert list(stored(after)) == list(stored(before))
    assert len(lifetimes(after.cores[0])) <= len(lifetimes(before.cores[0]))


@given(computations())
def test_reuse_takes_every_operand_that_dies(before: PimProgram):
    core = reuse_operands(before).cores[0]
    last = {life.buffer.name: life.last for life in lifetimes(core)}
    for i, step in enumerate(core.steps):
        op = step.operation
        if isinstance(op, Vector) and op.result not in op.operands:
            assert all(last[o.name] > i for o in op.operands if o.elements == op.result.elements)


def test_reuse_follows_a_chain_into_one_buffer():
    a, b, c, d = (buffer(name, 4) for name in "abcd")
    after = reuse_operands(
        program(Load(a, 0), Vector(b, "relu", (a,)), Vector(c, "relu", (b,)), Vector(d, "add", (c, c)), Store(d, 0))
    )
    assert {life.buffer for life in lifetimes(after.cores[0])} == {a}


def test_reuse_spares_an_operand_that_is_read_later():
    a, b = buffer("a", 4), buffer("b", 4)
    before = program(Load(a, 0), Vector(b, "relu", (a,)), Store(b, 0), Store(a, 4))
    assert list(reuse_operands(before).cores[0].steps) == list(before.cores[0].steps)


def test_a_copy_of_a_whole_buffer_is_dropped():
    a, b, c = (buffer(name, 4) for name in "abc")
    before = program(Load(a, 0), copy_of(a, b, 4), copy_of(b, c, 4), Vector(b, "relu", (c,)), Store(a, 0))
    kept = drop_copies(program(*(step.operation for step in before.cores[0].steps), Store(b, 4)))
    assert [type(step.operation) for step in kept.cores[0].steps] == [Load, Move, Move, Vector, Store, Store]
    after = drop_copies(program(Load(a, 0), copy_of(a, b, 4), copy_of(b, c, 4), Store(c, 0)))
    assert [str(step.operation) for step in after.cores[0].steps] == [str(Load(a, 0)), str(Store(a, 0))]


def test_a_tensor_that_a_dropped_copy_made_is_observed_where_its_value_was_made():
    a, b = buffer("a", 4), buffer("b", 4)
    core = program(Load(a, 0), Vector(a, "relu", (a,)), Load(buffer("c", 1), 4), copy_of(a, b, 4), Store(b, 0)).cores[0]
    step = np.array([2, 4])
    trace = TensorTrace("t", "n", Image((4,), 0), (), np.zeros(2, np.int64), step)
    after = drop_copies(PimProgram("tiny", {0: core}, 0, (trace,)))
    assert after.traces[0].step.tolist() == [2, 2]
    assert len(after.cores[0].steps) == 4


def test_more_memory_than_the_simulator_s_default_is_a_warning():
    chip_ = {"xbar": 128, "cores": 4, "mapping": "raptor"}
    large = make_model([node("Relu", "x")], {"x": (1, 8, 400, 400)}, ["y"])
    (warning,) = raptor.compile(large, **chip_).report.warnings
    assert warning.startswith("local memory: 1 of 1 cores need more than 1048576 bytes (the simulator's default")
    assert "core 0 needs 1280001, mostly for my_relu" in warning
    assert raptor.compile(conv_model((1, 3, 8, 8), 4), **chip_).report.warnings == ()


def test_a_core_exactly_full_is_no_warning():
    core = program(Load(buffer("a", 2**20 - 1), 0))
    assert memory_warnings(allocate(core, ARCH), ARCH) == ()
    core = program(Load(buffer("a", 2**20), 0))
    assert len(memory_warnings(allocate(core, ARCH), ARCH)) == 1


def test_more_memory_than_the_architecture_file_names_is_an_error(tmp_path: Path):
    path = arch_file(tmp_path, memory_size=100)
    model = make_model([node("Relu", "x")], {"x": (1, 8, 5, 5)}, ["y"])
    wanted = (
        "core 0, the fullest of 1 that need more, mostly for my_relu: bytes of local memory: need 201, have 100; try"
    )
    with pytest.raises(CapacityError, match=wanted):
        raptor.compile(model, arch=path, mapping="raptor")
