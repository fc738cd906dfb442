"""Meaning of every instruction, in both engines and both schedules."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor.common.errors import InternalError, UserError
from raptor.target.isa import BY_NAME, BY_OPCODE, INSTRUCTIONS, Instruction, Records
from raptor.target.opcode_tables import OPCODE_RULES
from tests.validator.builder import Builder, address, op, place, stream
from validator.engines import compiled_engine as compiled
from validator.engines import reference_engine
from validator.engines.machine import EngineStop
from validator.errors import DeadlockError, ProgramError
from validator.execution.run import execute_machine, prepare_machine, run_program
from validator.load.output_directory import load_output
from validator.load.stream_check import _NOT_FLOAT, _OFFSET_BITS  # pyright: ignore[reportPrivateUsage]
from validator.program.program import LoadedProgram

MODES = [(engine, schedule) for engine in ("python", "numba") for schedule in ("block", "round-robin")]
SETBW = op("setbw", ibiw=8, obiw=8)


def finish(program: LoadedProgram, values: np.ndarray, engine: Any, schedule: Any) -> tuple[np.ndarray, ...]:
    """Memories, registers and program counters at the end of a run whose input x is `values`."""
    state = prepare_machine(program, {"x": values.astype(np.float32)})
    execute_machine(state, engine=engine, schedule=schedule)
    return state.local, state.memory, state.registers, state.pc


def check_modes(program: LoadedProgram, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Runs in all modes, which must agree to the bit; returns the state."""
    results = [finish(program, values, *mode) for mode in MODES]
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(left, right)
            if left.dtype == np.float32:  # tells -0 from 0
                np.testing.assert_array_equal(np.signbit(left[~np.isnan(left)]), np.signbit(right[~np.isnan(right)]))
    return results[0]


def program_of(folder: Path, *cores: Records, elements: int = 32, **builder: Any) -> LoadedProgram:
    """Global memory: input x of `elements` elements at 0."""
    width = -(-builder.get("bits", 8) // 8)
    inputs = [place("x", [elements], 0)]
    return load_output(Builder(list(cores), inputs=inputs, **({"size_bytes": 256 * width} | builder)).write(folder))


ENGINES = {"python": reference_engine.execute, "numba": compiled.execute}


def stop_of(folder: Path, opcode: int, name: str) -> EngineStop:
    """Reason for which an engine stops that finds this opcode, with operands of 0, in a core with an array group."""
    program = program_of(folder, stream(SETBW, SETBW), matrices={0: [np.eye(8, dtype=np.float32)]})
    state = prepare_machine(program, {"x": np.zeros(32, np.float32)})
    state.words[1] = (opcode, 0, 0, 0, 1)
    return ENGINES[name](state, block=True, max_steps=9).stop


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("spec", INSTRUCTIONS, ids=lambda i: i.name)
def test_every_instruction_has_a_meaning(tmp_path: Path, spec: Instruction, name: str) -> None:
    """All but those that `check` refuses: an engine knows each opcode of the table by itself."""
    assert (stop_of(tmp_path, spec.opcode, name) is EngineStop.NO_MEANING) == (spec.name in _NOT_FLOAT)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("like", ["sadd", "vexp", "vvdiv"])
def test_a_row_without_a_meaning_is_a_fault(
    tmp_path: Path, like: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not taken for the last case of its kind."""
    rules = OPCODE_RULES.copy()
    rules[99] = rules[BY_NAME[like].opcode]
    monkeypatch.setattr(compiled, "OPCODE_RULES", rules)
    monkeypatch.setitem(BY_OPCODE, 99, replace(BY_NAME[like], opcode=99, name="new", simulated_as=like))
    if (name, like) == ("numba", "sadd"):
        with pytest.raises(NotImplementedError, match="a scalar instruction without a meaning"):
            stop_of(tmp_path, 99, name)
    else:
        assert stop_of(tmp_path, 99, name) is EngineStop.NO_MEANING


def test_an_instruction_without_a_meaning_is_named(tmp_path: Path) -> None:
    program = program_of(tmp_path, stream(SETBW, SETBW))
    state = prepare_machine(program, {"x": np.zeros(32, np.float32)})
    state.words[1, 0] = BY_NAME["vvsll"].opcode
    with pytest.raises(InternalError, match=r"core 0, instruction 1 \(vvsll .*\): the engine has no meaning for it"):
        execute_machine(state, engine="numba", schedule="block")


def load_x(elements: int, width: int = 1) -> tuple[tuple[int, ...], ...]:
    """Register 31: local address 0, where x is loaded to."""
    return SETBW, address(31, 0), address(28, 0), address(29, 0), op("ld", rd=31, rs1=28, size=elements * width)


X = np.array([1, -2, 0.5, 3, -0.0, 7, -1.5, 2, 4, 5, -6, 0.25, 8, -3, 0, 9], np.float32)
EIGHT = np.arange(8)


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


VECTOR = {
    # name: (extra operands, expected at 16..; a = X[:8], b = X[8:])
    "vvadd": ({}, X[:8] + X[8:]),
    "vvsub": ({}, X[:8] - X[8:]),
    "vvmul": ({}, X[:8] * X[8:]),
    "vvmax": ({}, np.maximum(X[:8], X[8:])),
    "vvdmul": ({}, [np.dot(f64(X[:8]), f64(X[8:]))]),
    "vvmask": ({}, np.where(X[8:] > 0, X[:8], -np.inf)),
    "vvdiv": ({}, [0.25, -0.4, -0.5 / 6, 12, -0.0, -7 / 3, -np.inf, 2 / 9]),
    "vrelu": ({}, [1, 0, 0.5, 3, -0.0, 7, 0, 2]),
    "vtanh": ({}, np.tanh(f64(X[:8]))),
    "vsigm": ({}, 1 / (1 + np.exp(-f64(X[:8])))),
    "vsoftmax": ({}, np.exp(f64(X[:8])) / np.exp(f64(X[:8])).sum()),
    "vexp": ({}, np.exp(f64(X[:8]))),
    "vlog": ({}, [0, np.nan, np.log(0.5), np.log(3), -np.inf, np.log(7), np.nan, np.log(2)]),
    "vsqrt": ({}, [1, np.nan, np.sqrt(0.5), np.sqrt(3), -0.0, np.sqrt(7), np.nan, np.sqrt(2)]),
    "verf": ({}, [0.8427008, -0.9953223, 0.5204999, 0.9999779, 0, 1, -0.9661051, 0.9953223]),
    "vavg": ({"stride": 2}, [X[:16:2].astype(np.float64).mean()]),
    "vmv": ({"stride": 2}, X[:16:2]),
    "vrsu": ({"stride": 2}, np.minimum(X[:8], 2)),
    "vrsl": ({"stride": -1}, np.maximum(X[:8], -1)),
}


def test_vector_cases_cover_the_table() -> None:
    vectors = {i.name for i in INSTRUCTIONS if i.unit == "vector"}
    assert set(VECTOR) == vectors - set(_NOT_FLOAT)


@pytest.mark.parametrize("name", VECTOR)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_vector_instruction(tmp_path: Path, name: str, bits: int) -> None:
    width = bits // 8
    extra, expected = VECTOR[name]
    spec = next(i for i in INSTRUCTIONS if i.name == name)
    operands = {"rd": 1, "rs1": 2, "len": 8}
    if any(o.name == "rs2" for o in spec.operands):
        operands["rs2"] = 3
    setup = [address(1, 16 * width), address(2, 0), address(3, extra.get("stride", 8 * width))]
    loads = (op("setbw", ibiw=bits, obiw=bits), *load_x(16, width)[1:])
    program = program_of(tmp_path, stream(*loads, *setup, op(name, **operands)), bits=bits, elements=16,
                         local_bytes=64 * width)  # fmt: skip
    local = check_modes(program, X)[0]
    want = np.asarray(expected, np.float32)
    np.testing.assert_allclose(local[16 : 16 + len(want)], want, rtol=1e-6)
    np.testing.assert_array_equal(local[:16], X)
    assert np.isnan(local[16 + len(want) :]).all()


@pytest.mark.parametrize("name", ["vvadd", "vvsub", "vvmul", "vvmax", "vvdiv", "vvmask", "vrelu", "vtanh", "vsoftmax"])
@pytest.mark.parametrize("other", [1, 2])
def test_vector_in_place(tmp_path: Path, name: str, other: int) -> None:
    spec = next(i for i in INSTRUCTIONS if i.name == name)
    rs2 = {"rs2": other} if any(o.name == "rs2" for o in spec.operands) else {}
    rows = [address(1, 0), address(2, 8), op(name, rd=1, rs1=1, len=8, **rs2)]
    local = check_modes(program_of(tmp_path, stream(*load_x(16), *rows), elements=16), X)[0]
    if name == "vvsub":
        np.testing.assert_array_equal(local[:8], X[:8] - (X[:8] if other == 1 else X[8:]))
    np.testing.assert_array_equal(local[8:16], X[8:])


def test_long_softmax_is_stable_and_nan_spreads(tmp_path: Path) -> None:
    rows = [address(1, 0), address(2, 16), address(3, 32), op("vsoftmax", rd=2, rs1=1, len=8),
            op("vvmax", rd=3, rs1=1, rs2=1, len=16), op("vrelu", rd=3, rs1=3, len=16)]  # fmt: skip
    values = X * 1000
    values[8] = np.nan
    local = check_modes(program_of(tmp_path, stream(*load_x(16), *rows), elements=16), values)[0]
    np.testing.assert_array_equal(local[16:24], [0, 0, 0, 0, 0, 1, 0, 0])
    assert np.isnan(local[40])


def test_offsets_count_elements_in_vectors_and_bytes_in_transfers(tmp_path: Path) -> None:
    rows = [
        op("setbw", ibiw=16, obiw=16),
        *load_x(16, 2)[1:],
        *(address(1, 40), address(2, 0), address(3, 0), address(4, 0), address(5, 100)),
        op("vvadd", rd=1, rs1=2, rs2=3, offset_select=0b111, offset_value=4, len=4),  # at 40 + 8 bytes
        op("lmv", rd=1, rs1=2, offset_select=0b10, offset_value=4, len=4),
        op("lldi", rd=1, offset_select=1, offset_value=4, len=4),
        op("ld", rd=1, rs1=28, offset_select=0b10, offset_value=16, size=2),
        op("st", rd=4, rs1=2, offset_select=0b11, offset_value=8, size=4),
    ]
    local, memory, *_ = check_modes(program_of(tmp_path, stream(*rows), bits=16, elements=16), X)
    np.testing.assert_array_equal(local[24:28], X[4:8] * 2)
    np.testing.assert_array_equal(local[20:24], [X[8], X[3], 0, 0])
    np.testing.assert_array_equal(memory[54:56], X[4:6])


@pytest.mark.parametrize(("select", "near", "far"), [(0, 0, 0), (1, 3, 0), (2, 0, 3), (3, 3, 3)])
def test_offsets_of_ld_and_st(tmp_path: Path, select: int, near: int, far: int) -> None:
    """Bit 0 is rd's: local for ld, global for st."""
    offset = {"offset_select": select, "offset_value": 3, "size": 4}
    rows = [address(2, 0), address(3, 50), address(1, 40), op("ld", rd=1, rs1=28, **offset)]
    rows += [op("st", rd=2, rs1=31, **offset)]
    local, memory, *_ = check_modes(program_of(tmp_path, stream(*load_x(16), *rows), elements=16), X)
    np.testing.assert_array_equal(local[40 + near : 44 + near], X[far : far + 4])
    np.testing.assert_array_equal(memory[50 + near : 54 + near], X[far : far + 4])
    assert np.isnan(memory[[49 + near, 54 + near]]).all()


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("rows", [1, 7, 8])
def test_mvmul(tmp_path: Path, relu: int, rows: int) -> None:
    rng = np.random.default_rng(rows)
    w = [rng.standard_normal((rows, cols)).astype(np.float32) for cols in (3, 8)]
    code = [address(1, 0), address(2, 20), address(3, 32)]
    code += [op("mvmul", rd=2, rs1=1, mbiw=8, relu=relu, group=0), op("mvmul", rd=3, rs1=1, mbiw=8, group=1)]
    local = check_modes(program_of(tmp_path, stream(*load_x(16), *code), matrices={0: w}, elements=16), X)[0]
    want = X[:rows] @ w[0]
    np.testing.assert_allclose(local[20:23], np.maximum(want, 0) if relu else want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(local[32:40], X[:rows] @ w[1], rtol=1e-5, atol=1e-6)
    assert np.isnan(local[40:]).all()
    assert np.isnan(local[23:32]).all()


def test_a_cell_without_a_weight_conducts_nothing(tmp_path: Path) -> None:
    """Infinity in a row is seen where a column has a weight there; NaN (memory that nobody wrote) in every column."""
    w = np.eye(8, dtype=np.float32) + np.eye(8, k=1, dtype=np.float32)
    code = [address(1, 0), address(2, 16), address(3, 32), address(4, 8)]
    code += [op("mvmul", rd=2, rs1=1, mbiw=8, group=0), op("mvmul", rd=3, rs1=4, mbiw=8, group=0)]
    x = np.array([1, -np.inf, 3, 4, np.inf, 6, -np.inf, 8, 1, 2, 3, np.nan, 5, 6, 7, 8], np.float32)
    program = program_of(tmp_path, stream(*load_x(16), *code), matrices={0: [w]}, elements=16, local_bytes=64)
    local = check_modes(program, x)[0]
    inf = np.inf
    np.testing.assert_array_equal(local[16:24], [1, -inf, -inf, 7, inf, inf, -inf, -inf])
    assert np.isnan(local[32:40]).all()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([op("saddi", rd=3, rs1=1, imm=2**31 - 1)], -(2**31) + 6),
        ([op("smuli", rd=3, rs1=1, imm=-3)], -21),
        ([op("smuli", rd=3, rs1=1, imm=2**30)], -(2**30)),
        ([op("sadd", rd=3, rs1=1, rs2=2)], 7 - 2**31),
        ([op("ssub", rd=3, rs1=1, rs2=2)], 7 - 2**31),
        ([op("smul", rd=3, rs1=2, rs2=2)], 0),
        ([op("smul", rd=3, rs1=1, rs2=1), op("nop")], 49),
    ],
)
def test_scalars_wrap_around(tmp_path: Path, rows: list[tuple[int, ...]], expected: int) -> None:
    program = program_of(tmp_path, stream(address(1, 7), address(2, -(2**31)), *rows))
    registers = check_modes(program, np.zeros(32))[2]
    assert registers[0, 3] == expected


def test_tokens(tmp_path: Path) -> None:
    """A core goes on when it has those that it waits for."""
    give = op("sync", core=1, event_register=3)
    second = stream(op("wait", event_register=3, wait_value=2), *load_x(4))
    local = check_modes(program_of(tmp_path, stream(give, give), second), np.arange(32))[0]
    np.testing.assert_array_equal(local[256:260], np.arange(4))
    with pytest.raises(DeadlockError, match=r"(?s)core 1.*2 tokens in event register 3, has 1"):
        check_modes(program_of(tmp_path / "one", stream(give), second), np.arange(32))


STORE = (*load_x(4), address(2, 0), address(3, 100), op("st", rd=2, rs1=31, size=4))
LOAD = (address(1, 8), address(2, 0), address(3, 100), op("ld", rd=1, rs1=2, size=4))


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ((STORE, LOAD), "core 1.*4 bytes at 100 of global memory are of core 0, which has stored there"),
        ((STORE, STORE), "core 1.*4 bytes at 100 of global memory are of core 0"),
        (((*load_x(4), op("st", rd=28, rs1=31, size=4)), ()), "core 0.*hold an input or a constant"),
    ],
)
@pytest.mark.parametrize("engine", ["numba", "python"])
def test_global_memory_is_no_channel(tmp_path: Path, streams: Any, message: str, engine: Any) -> None:
    """In another order of cores, the loaded or final values would differ."""
    program = program_of(tmp_path, *(stream(*rows) for rows in streams))
    with pytest.raises(ProgramError, match=message):
        finish(program, np.arange(32), engine, "block")


def test_a_core_loads_what_it_has_stored(tmp_path: Path) -> None:
    local = check_modes(program_of(tmp_path, stream(*STORE, *LOAD)), np.arange(32))[0]
    np.testing.assert_array_equal(local[8:12], np.arange(4))


def exchange(kind: str, partner: int, at: int, size: int = 4) -> tuple[tuple[int, ...], ...]:
    rs1 = {"rs1": 5} if kind == "send" else {}
    return address(5, at), op(kind, rd=5, core=partner, size=size, **rs1)


def test_rendezvous_in_order(tmp_path: Path) -> None:
    a = stream(*load_x(8), *exchange("send", 1, 0), *exchange("send", 1, 4))
    b = stream(*exchange("recv", 0, 20), *exchange("recv", 0, 8), *exchange("send", 2, 8))
    c = stream(*exchange("recv", 1, 30))
    local = check_modes(program_of(tmp_path, a, b, c), np.arange(32))[0]
    np.testing.assert_array_equal(local[256 + 20 : 256 + 24], range(4))
    np.testing.assert_array_equal(local[512 + 30 : 512 + 34], range(4, 8))


def test_offsets_of_send_and_recv(tmp_path: Path) -> None:
    for select in (1, 2, 3):
        send = op("send", rd=5, rs1=5, core=1, offset_select=select, offset_value=3, size=2)
        recv = op("recv", rd=5, core=0, offset_select=1, offset_value=7, size=2)
        program = program_of(tmp_path, stream(*load_x(8), address(5, 1), send), stream(address(5, 1), recv))
        np.testing.assert_array_equal(check_modes(program, np.arange(32))[0][256 + 8 : 256 + 10], [4, 5])


@pytest.mark.parametrize(("engine", "schedule"), MODES)
def test_deadlock(tmp_path: Path, engine: Any, schedule: Any) -> None:
    a = stream(*exchange("send", 1, 0), *exchange("recv", 1, 4))
    b = stream(*exchange("send", 0, 0), *exchange("recv", 0, 4))
    c = stream(op("wait", event_register=2, wait_value=5), op("nop"))
    d = stream(op("sync", core=2, event_register=2), *exchange("recv", 4, 0))
    program = program_of(tmp_path, a, b, c, d, stream(op("nop")))
    with pytest.raises(DeadlockError) as caught:
        run_program(program, {"x": np.zeros(32, np.float32)}, engine=engine, schedule=schedule)
    assert str(caught.value).splitlines() == [
        "deadlock:",
        "  core 0 at 1 (send rd=5 rs1=5 core=1 size=4) waits for a recv of core 1, "
        "which is at 1 (send rd=5 rs1=5 core=0 size=4)",
        "  core 1 at 1 (send rd=5 rs1=5 core=0 size=4) waits for a recv of core 0, "
        "which is at 1 (send rd=5 rs1=5 core=1 size=4)",
        "  core 2 at 0 (wait event_register=2 wait_value=5) waits for 5 tokens in event register 2, has 1",
        "  core 3 at 2 (recv rd=5 core=4 size=4) waits for a send of core 4, which has finished",
    ]
    assert caught.value.exit_status == 3


def one(*rows: tuple[int, ...]) -> tuple[Records, ...]:
    return (stream(SETBW, address(1, 0), address(2, 8), address(3, 250), address(4, 0), address(5, 4), *rows),)


FAULTS = {
    "local range": (one(op("lmv", rd=3, rs1=1, len=8)), "8 bytes at 250 leave the 256 bytes of local memory of core 0"),
    "below": (one(address(6, -1), op("lldi", rd=6, len=8)), "8 bytes at -1 leave"),
    "vector range": (one(op("vvadd", rd=1, rs1=1, rs2=3, len=7)), "7 bytes at 250 leave"),
    "stride": (one(address(6, 100), op("vmv", rd=1, rs1=2, rs2=6, len=4)), "301 bytes at 8 leave"),
    "negative stride": (one(address(6, -1), op("vavg", rd=1, rs1=2, rs2=6, len=4)), "leave"),
    "global range": (one(address(6, 0), address(7, 253), op("ld", rd=1, rs1=6, size=4)), "256 bytes of global memory"),
    "high word": (one(address(6, 1), address(7, 0), op("st", rd=6, rs1=1, size=4)), "at 4294967296 leave"),
    "low word": (one(address(6, 0), address(7, -1), op("ld", rd=1, rs1=6, size=4)), "at 4294967295 leave"),
    "global below": (one(address(6, -1), address(7, 0), op("ld", rd=1, rs1=6, size=4)), "at -4294967296 leave"),
    "overlap": (one(op("vvadd", rd=5, rs1=5, rs2=1, len=5)), "5 bytes at 4, overlaps a source in part"),
    "overlap 1": (one(op("vrelu", rd=5, rs1=1, len=5)), "overlaps a source in part"),
    "overlap lmv": (one(op("lmv", rd=1, rs1=1, len=5)), "overlaps a source in part"),
    "overlap vmv": (one(op("vmv", rd=1, rs1=1, rs2=5, len=5)), "overlaps a source in part"),
    "registers": (
        (
            stream(address(1, 0), address(2, 8), op("send", rd=1, rs1=2, core=1, size=4)),
            stream(*exchange("recv", 0, 0)),
        ),
        "rd and rs1 differ: the simulator times rd and checks rs1",
    ),
    "sizes": (
        (stream(*exchange("send", 1, 0, 4)), stream(*exchange("recv", 0, 0, 5))),
        "the partner's size is 5 bytes",
    ),
    "sender": ((stream(*exchange("send", 1, 255)), stream(*exchange("recv", 0, 0))), "local memory of core 0"),
    "receiver": ((stream(*exchange("send", 1, 0)), stream(*exchange("recv", 0, 255))), "local memory of core 1"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(("engine", "schedule"), MODES)
def test_faults(tmp_path: Path, name: str, engine: Any, schedule: Any) -> None:
    cores, message = FAULTS[name]
    program = program_of(tmp_path, *cores)
    with pytest.raises(ProgramError) as caught:
        run_program(program, {"x": np.zeros(32, np.float32)}, engine=engine, schedule=schedule)
    assert message in str(caught.value)
    core = 1 if name == "receiver" else 0
    assert (caught.value.core, caught.value.pc) == (core, len(cores[core]) - 1)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(("engine", "schedule"), MODES)
@pytest.mark.parametrize("row", [op("lldi", rd=1, len=3), op("lldi", rd=2, len=2), op("vrelu", rd=1, rs1=2, len=1)])
def test_unaligned(tmp_path: Path, row: tuple[int, ...], engine: Any, schedule: Any) -> None:
    core = stream(op("setbw", ibiw=16, obiw=16), address(1, 0), address(2, 5), row)
    with pytest.raises(ProgramError, match="not a multiple of the 2 bytes of an element"):
        run_program(
            program_of(tmp_path, core, bits=16), {"x": np.zeros(32, np.float32)}, engine=engine, schedule=schedule
        )


@pytest.mark.parametrize(("engine", "schedule"), MODES)
def test_limit_of_instructions(tmp_path: Path, engine: Any, schedule: Any) -> None:
    program = program_of(tmp_path, stream(*[op("nop")] * 10), stream(*[op("nop")] * 10))
    inputs = {"x": np.zeros(32, np.float32)}
    assert run_program(program, inputs, engine=engine, schedule=schedule, max_steps=20).instructions == 20
    with pytest.raises(ProgramError, match="limit of instructions"):
        run_program(program, inputs, engine=engine, schedule=schedule, max_steps=19)


@pytest.mark.parametrize(("engine", "schedule"), MODES)
def test_probes_see_the_moment_before(tmp_path: Path, engine: Any, schedule: Any) -> None:
    """A probe also works if another core moves the program counter past the instruction, and at the end of a stream."""

    def probe(name: str, core: int, pc: int, at: int = 0) -> dict[str, Any]:
        tile = {"channels": [0, 2], "rows": [0, 1], "core": core, "pc": pc, "address": at}
        return {"tensor": name, "node": name, "image_shape": [2], "channel_axis": 0, "tiles": [tile]}

    a = stream(*load_x(4), *exchange("send", 1, 0, 2), op("lldi", rd=31, len=4))
    b = stream(address(4, 0), op("lldi", rd=4, len=2), *exchange("recv", 0, 0, 2), op("lldi", rd=4, len=2))
    probes = [probe("start", 0, 0), probe("loaded", 0, 5), probe("zeroed", 0, len(a)), probe("before", 1, 3)]
    probes += [probe("after", 1, 4), probe("again", 1, 4), probe("end", 1, 5)]
    program = program_of(tmp_path, a, b, probes=probes)
    seen = run_program(program, {"x": np.arange(32) + 1.0}, engine=engine, schedule=schedule, probes=True).probes
    expected = {"start": [np.nan] * 2, "loaded": [1, 2], "zeroed": [0, 0], "before": [0, 0], "after": [1, 2]}
    expected |= {"again": [1, 2], "end": [0, 0]}
    for name, want in expected.items():
        np.testing.assert_array_equal(seen[name], want)


def test_probes_between_messages(tmp_path: Path) -> None:
    """Core 0 waits when core 1 sends twice in one go: the first message must be seen before the second comes."""
    twice = [op("send", rd=5, rs1=5, core=0, size=2)] * 2
    a = stream(*load_x(4), address(5, 0), *twice[:1], address(5, 2), *twice[1:])
    b = stream(address(5, 0), *[op("recv", rd=5, core=1, size=2)] * 2)
    probes = [
        {"tensor": name, "node": name, "image_shape": [2], "channel_axis": 0}
        | {"tiles": [{"channels": [0, 2], "rows": [0, 1], "core": 0, "pc": pc, "address": 0}]}
        for name, pc in (("none", 1), ("first", 2), ("second", 3))
    ]
    program = program_of(tmp_path, b, a, probes=probes)
    for engine, schedule in MODES:
        seen = run_program(program, {"x": np.arange(32) + 1.0}, engine=engine, schedule=schedule, probes=True).probes
        np.testing.assert_array_equal(seen["first"], [1, 2])
        np.testing.assert_array_equal(seen["second"], [3, 4])
        assert np.isnan(seen["none"]).all()


@pytest.mark.parametrize("name", [n for n in VECTOR if n not in ("vmv", "vrsu", "vrsl")])
def test_both_engines_agree_to_the_bit(tmp_path: Path, name: str) -> None:
    """Over all magnitudes, and the values that no formula likes."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal(800) * 10.0 ** rng.uniform(-30, 30, 800)
    values[:400] = rng.standard_normal(400) * 3
    values[100:108] = [0, -0.0, np.inf, -np.inf, np.nan, 88.8, -104, 1e-45]
    rows: list[tuple[int, ...]] = []
    rs2 = {"rs2": 3} if any(o.name == "rs2" for o in BY_NAME[name].operands) else {}
    for start in range(0, 800, 16):
        rows += [address(1, 1000 + start), address(2, start), address(3, 1 if name == "vavg" else 799 - start - 15)]
        rows += [op(name, rd=1, rs1=2, len=16, **rs2)]
    core = stream(*load_x(800), *rows)
    inputs = [place("x", [800], 0)]
    check_modes(load_output(Builder([core], inputs=inputs, size_bytes=800, local_bytes=2000).write(tmp_path)), values)


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_run_packs_and_unpacks_tiles(tmp_path: Path, bits: int) -> None:
    """x[2, 3, 4] with channels on axis 1 in tiles of 2 and 1, copied to y in one piece."""
    width = -(-bits // 8)
    tiles = [
        {"channels": [0, 2], "rows": [0, 2], "address": 8 * width},
        {"channels": [2, 3], "rows": [0, 2], "address": 50 * width},
    ]
    setup = (op("setbw", ibiw=bits, obiw=bits), address(1, 0), address(2, 0), address(4, 0), address(6, 0))
    code = [address(3, 8 * width), op("ld", rd=1, rs1=2, size=16 * width), address(3, 50 * width)]
    code += [address(1, 16 * width), op("ld", rd=1, rs1=2, size=8 * width)]
    # Pixels of one channel and of two become pixels of three.
    code += [address(10, 40 * width)]
    for pixel in range(8):
        code += [address(7, (40 + 3 * pixel) * width), address(8, 2 * pixel * width), address(9, (16 + pixel) * width)]
        code += [op("lmv", rd=7, rs1=8, len=2 * width), address(7, (42 + 3 * pixel) * width)]
        code += [op("lmv", rd=7, rs1=9, len=width)]
    code += [address(5, 100 * width), op("st", rd=4, rs1=10, size=24 * width)]
    builder = Builder(
        [stream(*setup, *code)],
        inputs=[place("x", [2, 3, 4], 0, axis=1, tiles=tiles)],
        outputs=[place("y", [2, 3, 4], 100 * width, axis=1)],
        size_bytes=128 * width,
        local_bytes=64 * width,
        bits=bits,
    )
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    program = load_output(builder.write(tmp_path))
    for engine, schedule in MODES:
        np.testing.assert_array_equal(run_program(program, {"x": x}, engine=engine, schedule=schedule).outputs["y"], x)
    with pytest.raises(UserError, match=r"input 'x': expected shape \[2, 3, 4\], got \[24\]"):
        run_program(program, {"x": x.ravel()})
    with pytest.raises(UserError, match="input 'x' is missing"):
        run_program(program, {})


# Random programs: a global order of messages and local work, projected on the cores, cannot deadlock.


_WORK = 192  # local memory that random programs work in, defined from the start


@st.composite
def cores(draw: st.DrawFn) -> list[Records]:
    count = draw(st.integers(1, 6))
    rows: list[list[tuple[int, ...]]] = [[*load_x(_WORK)] for _ in range(count)]
    for _ in range(draw(st.integers(0, 25))):
        core = draw(st.integers(0, count - 1))
        partner = draw(st.integers(0, count - 1))
        if core != partner:
            size = draw(st.integers(1, 16))
            for kind, me, other in (("send", core, partner), ("recv", partner, core)):
                rows[me] += exchange(kind, other, draw(st.integers(0, 256 - size)), size)
        else:
            rows[core] += draw(local_work(_WORK + 36 * core))
    return [stream(*r) for r in rows]


@st.composite
def local_work(draw: st.DrawFn, stores_at: int) -> list[tuple[int, ...]]:
    """Draws one instruction, with addresses that are apart, or equal where that has a meaning."""
    spec = draw(
        st.sampled_from([i for i in INSTRUCTIONS if i.name not in (*_NOT_FLOAT, "sld", "send", "recv", "wait", "nop")])
    )
    places = draw(st.permutations([0, 48, 96, 144]))
    if spec.name.startswith("v") and spec.name != "vmv" and draw(st.booleans()):
        places[1] = places[0]
    fixed = {"ibiw": 8, "obiw": 8, "mbiw": 8, "rd": 1, "rs1": 2, "rs2": 3, "event_register": 1}
    fixed |= {"core": 0, "group": 0, "imm": draw(st.integers(-9, 9)) if spec.unit == "scalar" else 0}
    select = 7 if places[0] == places[1] else draw(st.integers(0, 7)) | _OFFSET_BITS.get(spec.name, 0)
    fixed |= {"offset_select": select, "relu": draw(st.integers(0, 1)), "offset_value": draw(st.integers(0, 4))}
    fixed |= {"len": draw(st.integers(1, 40)), "size": draw(st.integers(1, 40))}
    rs2 = draw(st.integers(0, 2)) if any(o.name == "rs2" and o.kind == "register read" for o in spec.operands) else None
    if spec.name == "vmv":
        fixed |= {"offset_value": 0, "len": fixed["len"] // 2 + 1}
    setup = [address(1, places[0]), address(2, places[1]), address(3, places[2] if rs2 is None else rs2)]
    names = {o.name for o in spec.operands}
    if spec.name in ("ld", "st"):
        fixed |= {"rs1" if spec.name == "ld" else "rd": 6, "size": fixed["len"] % 30 + 1}
        setup += [address(6, 0), address(7, stores_at)]
    return [*setup, op(spec.name, **{k: v for k, v in fixed.items() if k in names})]


@settings(max_examples=150, deadline=None)
@given(streams=cores(), seed=st.integers(0, 2**32 - 1))
def test_all_modes_agree_on_random_programs(streams: list[Records], seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    values = rng.standard_normal(_WORK) * 10 ** rng.uniform(-3, 3)
    with TemporaryDirectory() as folder:
        matrices = {core: [w] for core in range(len(streams))}
        program = program_of(Path(folder), *streams, matrices=matrices, elements=_WORK, size_bytes=512)
    check_modes(program, values)
