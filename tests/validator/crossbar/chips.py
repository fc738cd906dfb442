"""Random crossbars for tests: a matrix, inputs and a setup, all from a seed."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from raptor.target.cell_models import ENCODINGS, INPUT_CODINGS, Adc, CellModel, ConductanceSpread
from validator.crossbar import crossbar_kernels, reference_product
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.kernel_tables import make_kernel_tables, make_work_space
from validator.crossbar.programmed_chip import GroupUse, ProgrammedChip, program_chip

SAMPLE = 5
ROWS = (16, 17, 64, 65, 100, 128, 256, 512)


@dataclass(frozen=True)
class Case:
    """A matrix [rows, cols] of weights, inputs [n, rows], their bits, and a setup."""

    matrix: np.ndarray
    x: np.ndarray
    weight_bits: int
    input_bits: int
    setup: ChipSetup

    @property
    def chip(self) -> ProgrammedChip:
        return program_chip([self.matrix], [GroupUse(0, 0, self.weight_bits, self.input_bits, "layer")], self.setup)

    def with_setup(self, **changes: Any) -> "Case":
        return replace(self, setup=replace(self.setup, **changes))


def sweep(few: int, every: int) -> list[Any]:
    """Returns seeds as two parameters: the first `few`, which are always tried, and the rest, which is slow."""
    return [range(few), pytest.param(range(few, every), marks=pytest.mark.slow)]


def random_case(seed: int, **changes: Any) -> Case:
    """All encodings, codings of inputs, bits of cells and of steps, and rows; often the extreme weights and inputs."""
    rng = np.random.default_rng(seed)
    encoding = ENCODINGS[seed % len(ENCODINGS)]
    rows, cols = int(rng.choice(ROWS)), int(rng.integers(1, 6))
    bits = [2, 2] if encoding == "xnor" else rng.integers(1, 9, 2).tolist()
    matrix, x = (numbers(rng, shape, b) for shape, b in zip(((rows, cols), (2, rows)), bits, strict=True))
    if encoding == "xnor":
        matrix, x = rng.choice([-1, 1], (rows, cols)), rng.integers(-1, 2, (2, rows))
    setup = ChipSetup(
        kind="sliced",
        encoding=encoding,
        levels=("full", "shared")[seed // 2 % 2],
        inputs=INPUT_CODINGS[seed // len(ENCODINGS) % len(INPUT_CODINGS)],
        cell_bits=int(rng.integers(1, 9)),
        dac_bits=int(rng.integers(1, 9)),
        rows_at_once=int(rng.choice([7, 64, rows, 1024])),
        xbar=(512, 512),
        seed=seed,
    )
    return Case(matrix, x, *bits, replace(setup, **changes))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], bits: int) -> np.ndarray:
    low, high = -(1 << bits - 1), 1 << bits - 1
    return rng.choice([low, high - 1], shape) if rng.random() < 0.3 else rng.integers(low, high, shape)


def random_adc(seed: int) -> Adc:
    rng = np.random.default_rng([seed, 1])
    return Adc(bits=int(rng.integers(1, 14)), range=("full", "unit")[seed % 2], noise_lsb=float(seed % 3) / 4)


CELLS = CellModel(
    off=1.0,
    on=50.0,
    programming=(ConductanceSpread(polynomial=(1.0, 0.01)),),
    read=ConductanceSpread(polynomial=(0.5,)),
    stuck_on=0.01,
    stuck_off=0.02,
)


def products(case: Case, chip: ProgrammedChip | None = None) -> np.ndarray:
    """Multiplies all inputs by the compiled kernels."""
    tables = make_kernel_tables(chip or case.chip)
    found = np.zeros((len(case.x), case.matrix.shape[1]), np.int64)
    work = make_work_space(tables, sample=SAMPLE)
    assert crossbar_kernels.multiply_vectors(0, case.x.astype(np.int32), case.input_bits, tables, work, found) == -1
    return found


def defined(case: Case, chip: ProgrammedChip | None = None) -> np.ndarray:
    """Multiplies all inputs by the definition."""
    made = chip or case.chip
    return np.stack(
        [reference_product.multiply_on_crossbars(made, 0, x, case.input_bits, SAMPLE, k) for k, x in enumerate(case.x)]
    )


def exact(case: Case) -> np.ndarray:
    return case.x.astype(np.int64) @ case.matrix.astype(np.int64)
