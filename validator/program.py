"""A program loaded from an output directory: checked, and ready to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.output.files import (
    Config,
    Layers,
    Manifest,
    Memory,
)
from raptor.target.isa import Records

Indices = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
"""Content of a memory: float32 numbers, or bytes in a program with integers."""
Matrix = npt.NDArray[Any]
"""Weights: float32, or int8 or int16 in a program with integers."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The matrices of all array groups, row-major one after another in `values`: int8 or int16 if it has integers.

    Group g of core c is entry `first[c] + g` of `offset`, `rows` and `cols`.
    """

    values: Matrix
    offset: Indices
    rows: Indices
    cols: Indices
    first: Indices

    def matrix(self, core: int, group: int) -> Matrix:
        """Returns the matrix [rows, cols] of one group as a view."""
        i = int(self.first[core]) + group
        rows, cols, offset = int(self.rows[i]), int(self.cols[i]), int(self.offset[i])
        return self.values[offset : offset + rows * cols].reshape(rows, cols)


@dataclass(frozen=True, slots=True)
class Program:
    """All data of the directory that a run needs. `layers` is None if the directory has no layers.json."""

    folder: Path
    manifest: Manifest
    config: Config
    memory: Memory
    layers: Layers | None
    streams: tuple[Records, ...]
    weights: Weights
    constants: Values

    @property
    def core_count(self) -> int:
        return self.config.core_cnt

    @property
    def has_integers(self) -> bool:
        """True if memories are bytes, whose elements are integers (and, in a mixed program, float32)."""
        return self.manifest.numbers != "float"

    @property
    def instruction_count(self) -> int:
        return sum(map(len, self.streams))
