"""Cells that a mapping leaves without a weight, whose errors nevertheless add to sums.

A mapping that computes a line of pixels with one product puts each weight into several columns, with zeros around it.
A chip drives the rows of these zeros, too, so their cells add their errors.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raptor.graph.ir import Filter, Graph
from validator.crossbar.chip_programming import list_group_uses
from validator.load.output_directory import load_output


@dataclass(frozen=True, slots=True)
class LayerZeros:
    """Zeros of a layer. `stored`: share of zeros in its matrices; `own`: share of zeros in its ONNX weights."""

    node: str
    stored: float
    own: float

    @property
    def placed(self) -> float:
        """Share of the cells that the mapping fills with zeros."""
        return max(0.0, 1 - 1 / self.error_factor**2)

    @property
    def error_factor(self) -> float:
        """Error of a sum, if all cells have equal errors and all rows equal inputs, over that without such zeros."""
        return math.sqrt(max(1.0, (1 - self.own) / max(1 - self.stored, 1e-9)))


def find_layer_zeros(folder: Path, graph: Graph) -> tuple[LayerZeros, ...]:
    """Returns the zeros of each layer on crossbars of an integer program. `graph`: the imported model.

    Raises `UserError` if the directory is not a complete output.
    """
    program = load_output(folder)
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for use in list_group_uses(program):
        matrix = program.weights.matrix(use.core, use.group)
        counts[use.layer][0] += int(np.count_nonzero(matrix))
        counts[use.layer][1] += matrix.size
    own = {n.name: n.operator.weights for n in graph.nodes if isinstance(n.operator, Filter)}
    return tuple(
        LayerZeros(node, 1 - used / cells, 1 - np.count_nonzero(own[node]) / own[node].size)
        for node, (used, cells) in counts.items()
        if node in own
    )
