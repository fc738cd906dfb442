"""Values that operations read and write: tiles of SpatialIR. Buffers of PimIR derive from the same base class."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.target.chip_elements import MODELLED_FLOAT, ElementType


def tile_name(tensor: str, index: int) -> str:
    """Returns the name of a tile: `x.0`; `x.2:0` for a tensor `x.2`, because `x.2.0` is a partial sum of `x`."""
    stem, _, last = tensor.rpartition(".")
    return f"{tensor}:{index}" if stem and last.isdigit() else f"{tensor}.{index}"


class ShapedValue(msgspec.Struct, frozen=True, gc=False):
    """A value of `rows x width` pixels with `channels` elements each. Elements of a pixel are adjacent in memory."""

    name: str
    rows: int
    width: int
    channels: int
    element: ElementType = MODELLED_FLOAT

    @property
    def elements(self) -> int:
        return self.rows * self.width * self.channels

    @property
    def pixels(self) -> int:
        return self.rows * self.width

    def __str__(self) -> str:
        return f"%{self.name}"

    @property
    def type(self) -> str:
        """The shape in the text form, `14x14x64`, followed by the element type unless it is `MODELLED_FLOAT`."""
        shape = f"{self.rows}x{self.width}x{self.channels}"
        return shape if self.element is MODELLED_FLOAT else f"{shape} {self.element}"


class Tile(ShapedValue, frozen=True, gc=False):
    """A value of SpatialIR. Names are unique."""


class ConstantTile(Tile, frozen=True, gc=False, eq=False, kw_only=True):
    """A constant operand: a pixel, a row or a whole tile, repeated over the result.

    label: constants of different labels are stored apart, even if they are equal, because one of them may be changed.
    """

    values: npt.NDArray[np.float32 | np.int32]
    """[elements], pixel by pixel: float32, or int32 for integers of any width."""
    label: str = ""

    @classmethod
    def from_pixels(
        cls, name: str, pixels: npt.NDArray[Any], element: ElementType = MODELLED_FLOAT, label: str = ""
    ) -> "ConstantTile":
        """Makes a constant of `pixels`: [rows, width, channels]."""
        rows, width, channels = pixels.shape
        kind = np.float32 if element.kind == "float" else np.int32
        values = np.ascontiguousarray(pixels, kind).reshape(-1)
        return cls(name, rows, width, channels, element, values=values, label=label)

    @property
    def period(self) -> int:
        """Number of elements after which the constant repeats."""
        return self.values.size

    def __str__(self) -> str:
        return f"const<{self.period}>"
