"""C source text of element types, weight types and constant tables."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from raptor.target.chip_elements import ElementType, bytes_of

Rows = npt.NDArray[np.integer] | Iterable[Iterable[object]]


def element_size(element: ElementType) -> int:
    """Returns the bytes of an element in C: a float of a modelled width is a float32."""
    return 4 if element.kind == "float" else bytes_of(element.bits)


def spell_type(element: ElementType) -> str:
    """Returns the type of an element in names of pim.h, such as f32 or i24."""
    return "f32" if element.kind == "float" else f"i{8 * bytes_of(element.bits)}"


def format_table(rows: Rows, columns: int, name: str = "t") -> str:
    """Returns the definition of a constant table of integers, [rows, columns]; it has a row of zeros if empty."""
    texts = ["{" + ",".join(map(str, row)) + "}" for row in (rows.tolist() if isinstance(rows, np.ndarray) else rows)]
    return f"static const int {name}[][{columns}] = {{{','.join(texts) or '{0}'}}};"


def spell_weight_type(dtype: np.dtype[np.generic]) -> str:
    """Returns the constant of pim.h that names the element type of a weight matrix, such as PIM_I8."""
    return "PIM_F32" if dtype.kind == "f" else f"PIM_I{8 * dtype.itemsize}"
