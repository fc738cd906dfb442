"""Programs on real crossbars: both engines and both schedules agree, and noise depends on what it is for alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor.target.cell_models import Adc
from tests.validator.builder import op
from tests.validator.crossbar.chips import CELLS
from tests.validator.engines.integer_programs import ENGINES, Setup, decoded, encoded, same
from validator.crossbar.chip_parameters import ChipSetup as Chip
from validator.crossbar.chip_programming import list_group_uses, program_crossbars
from validator.engines import machine
from validator.engines.machine import EngineStop, Machine
from validator.execution.run import prepare_machine
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram

MATRIX = np.random.default_rng(0).integers(-128, 128, (8, 8))
X = np.array([127, -128, 5, -5, 100, 64, -33, 0])
TWICE = (
    op("setbw", ibiw=8, obiw=32),
    op("mvmul", rd=3, rs1=1, mbiw=8, group=0),
    op("setbw", ibiw=32, obiw=32),
    op("sldi", rd=4, imm=2048 + 32),
    op("setbw", ibiw=8, obiw=32),
    op("mvmul", rd=4, rs1=1, mbiw=8, group=0),
)
SLICED = Chip("sliced", "offset", "twos_complement", 2, 1, 8, (8, 8), adc=Adc(bits=5))
NOISY = replace(SLICED, kind="noisy", cells=CELLS, adc=Adc(bits=6, noise_lsb=0.25), seed=3)


def program(folder: Path, *rows: tuple[int, ...], matrix: np.ndarray = MATRIX, x: np.ndarray = X) -> LoadedProgram:
    return load_output(
        Setup(encoded(x, 8)).build(*(rows or TWICE), matrices={0: [matrix]}, numbers="int").write(folder)
    )


def ran(made: LoadedProgram, sample: int = 0) -> Machine:
    """Runs a program in all modes, which must agree."""
    found: list[Machine] = []
    for engine in ENGINES:
        for block in (True, False):
            state = prepare_machine(made, {}, sample=sample)
            assert engine(state, block=block, max_steps=10**6).stop is EngineStop.DONE
            found.append(state)
    for other in found[1:]:
        same(found[0], other)
    return found[0]


def results(state: Machine) -> tuple[list[int], list[int]]:
    return decoded(state.local[2048 : 2048 + 32], 32), decoded(state.local[2080 : 2080 + 32], 32)


@pytest.mark.parametrize("adc", [Adc(bits=3), Adc(bits=20, range="unit"), None])
def test_both_engines_compute_with_slices(tmp_path: Path, adc: Any):
    first, second = results(ran(program_crossbars(program(tmp_path), replace(SLICED, adc=adc))))
    assert first == second
    assert (first == (X @ MATRIX).tolist()) == (adc is None or adc.range == "unit")


def test_both_engines_draw_the_same_noise(tmp_path: Path):
    made = program(tmp_path)
    first, second = results(ran(program_crossbars(made, NOISY)))
    assert first != second, "two reads have the same noise"
    assert results(ran(program_crossbars(made, NOISY))) == (first, second)
    assert results(ran(program_crossbars(made, NOISY), sample=1)) != (first, second)
    assert results(ran(program_crossbars(made, replace(NOISY, seed=4)))) != (first, second)


def test_widths_and_layers_of_a_program(tmp_path: Path):
    (use,) = list_group_uses(program(tmp_path))
    assert (use.core, use.group, use.weight_bits, use.input_bits, use.layer) == (0, 0, 8, 8, "core 0, group 0")


def test_inputs_that_an_encoding_cannot_drive(tmp_path: Path):
    made = program(tmp_path, matrix=np.ones((8, 8), np.int64), x=np.array([1, -1, 0, 7, 0, 0, 0, 9]))
    chip = program_crossbars(made, replace(SLICED, encoding="xnor"))
    for engine in ENGINES:
        state = prepare_machine(chip, {})
        fault = engine(state, block=True, max_steps=10**6)
        assert "element 3 is 7, which does not fit 2 bits" in str(machine.explain_fault(state, fault))


def test_sums_saturate_at_the_width_that_is_written(tmp_path: Path):
    rows = (op("setbw", ibiw=8, obiw=16), op("mvmul", rd=3, rs1=1, mbiw=8, group=0))
    x = np.full(8, 127)
    made = program(tmp_path, *rows, matrix=np.full((8, 8), 31), x=x)  # 31,496
    on = CELLS.model_copy(update={"stuck_on": 1.0, "stuck_off": 0.0, "read": None})
    found = decoded(ran(program_crossbars(made, replace(NOISY, cells=on, adc=None))).local[2048 : 2048 + 16], 16)
    assert found == [31496] * 8  # not more than an exact product with these weights can be
