"""A compute: work that fits one core, a body of operations on tiles."""

from typing import TypeAlias

import msgspec

from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.spatial.operations import OneResult
from raptor.spatial.tiles import Tile

BodyOp: TypeAlias = OneResult[Tile]


class Compute(msgspec.Struct, frozen=True, gc=False):
    """Work that fits one core and has no messages inside.

    node: the ONNX node. layer: key of the layer in the decision; empty for a layer without weights. matrices: the
    matrices that operations of the body name by index. results: the tiles of the body that are used outside of it.
    """

    node: str
    op_type: str
    layer: str
    matrices: tuple[Matrix, ...] | tuple[LineMatrix, ...]
    body: tuple[BodyOp, ...]
    results: tuple[Tile, ...]

    @property
    def inputs(self) -> tuple[Tile, ...]:
        """The tiles that the body reads but does not write, without constants."""
        inside = {op.result for op in self.body}
        return tuple(dict.fromkeys(t for op in self.body for t in op.reads if t not in inside))
