"""Programs with integers for tests: one core, constants in local memory, both engines and both schedules."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raptor.target.isa import Records
from tests.validator.builder import Builder, address, op, stream
from validator.engines import compiled_engine as compiled
from validator.engines import machine, reference_engine
from validator.engines.machine import EngineFault, EngineStop, Machine
from validator.errors import ProgramError
from validator.execution.run import prepare_machine
from validator.load.output_directory import load_output

ENGINES = (reference_engine.execute, compiled.execute)
LOCAL = 4096
A, B, Y = 0, 1024, 2048
"""Local addresses of two operands and of a result, in registers 1, 2 and 3."""
OPERANDS = {"rd": 3, "rs1": 1, "rs2": 2}


def encoded(values: list[int] | np.ndarray, bits: int) -> bytes:
    """Two's complement in whole bytes, the low byte first."""
    return b"".join(int(v).to_bytes(-(-bits // 8), "little", signed=True) for v in values)


def decoded(content: np.ndarray, bits: int) -> list[int]:
    size = -(-bits // 8)
    data = content.tobytes()
    return [int.from_bytes(data[k : k + size], "little", signed=True) for k in range(0, len(data), size)]


@dataclass(frozen=True)
class Setup:
    """Bytes that are loaded from global memory to `A` and `B` before `rows`."""

    a: bytes
    b: bytes = b""
    at_a: int = A
    at_b: int = B
    at_y: int = Y

    def prefix(self) -> list[tuple[int, ...]]:
        rows = [address(1, self.at_a), address(2, self.at_b), address(3, self.at_y), address(28, 0)]
        for register, start, content in ((1, 0, self.a), (2, len(self.a), self.b)):
            if content:
                rows += [address(29, start), op("ld", rd=register, rs1=28, size=len(content))]
        return rows

    def core(self, *rows: tuple[int, ...]) -> Records:
        return stream(*self.prefix(), *rows)

    def build(self, *rows: tuple[int, ...], numbers: str = "mixed", **builder: Any) -> Builder:
        constants = np.frombuffer(self.a + self.b, np.uint8)
        size = max(len(constants), 16)
        options = {"constants": constants, "size_bytes": size, "local_bytes": LOCAL, "numbers": numbers} | builder
        return Builder([self.core(*rows)], **options)


def outcome(state: Machine, execute: Any, block: bool) -> tuple[EngineFault, Machine]:
    return execute(state, block=block, max_steps=2**40), state


def run_all(folder: Path, builder: Builder) -> tuple[EngineFault, Machine]:
    """Runs a program in all modes; returns one of the results.

    Both engines must end in the same fault. Schedules may meet the faults of two cores in another order, but either
    both end in one or none. Memories at the end must be equal.
    """
    program = load_output(builder.write(folder))
    results = {(e, block): outcome(prepare_machine(program, {}), e, block) for e in ENGINES for block in (True, False)}
    fault, first = results[ENGINES[0], True]
    for (_, block), (other, state) in results.items():
        assert other == results[ENGINES[0], block][0]
        assert (other.stop is EngineStop.DONE) == (fault.stop is EngineStop.DONE)
        if fault.stop is EngineStop.DONE:
            same(first, state)
    return fault, first


def same(left: Machine, right: Machine) -> None:
    """Checks that two machines have the same memory."""
    assert left.written is not None
    assert right.written is not None
    for a, b in (
        (left.local, right.local),
        (left.memory, right.memory),
        (left.written.local, right.written.local),
        (left.written.memory, right.written.memory),
        (left.probes.captured, right.probes.captured),
        (left.registers, right.registers),
    ):
        np.testing.assert_array_equal(a, b)


def result(folder: Path, setup: Setup, *rows: tuple[int, ...], size: int, **builder: Any) -> np.ndarray:
    """Returns `size` bytes at `Y` after the run."""
    fault, state = run_all(folder, setup.build(*rows, **builder))
    assert fault.stop is EngineStop.DONE, machine.explain_fault(state, fault)
    assert state.written is not None
    part = slice(setup.at_y, setup.at_y + size)
    assert state.written.local[part].all()
    return state.local[part]


def trap(folder: Path, setup: Setup, *rows: tuple[int, ...], **builder: Any) -> tuple[EngineFault, str]:
    """Returns the fault at which both engines stop, and its explanation."""
    fault, state = run_all(folder, setup.build(*rows, **builder))
    error = machine.explain_fault(state, fault)
    assert isinstance(error, ProgramError)
    return fault, str(error)
