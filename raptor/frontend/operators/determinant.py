"""Determinants of small matrices."""

from functools import reduce
from itertools import permutations

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.rearrangement import c_order

LARGEST_MATRIX = 4
"""Maximum size of the matrices: the sum has one product for each permutation of the rows."""


@importer("Det", since=11, limits=f"matrices of at most {LARGEST_MATRIX} rows")
def import_det(node: NodeView, ctx: ImportContext) -> None:
    """Determinant by the Leibniz formula: the sum of signed products over all permutations."""
    build, x = OperatorBuilder(node, ctx), ctx.tensor(node.inputs[0])
    size = x.shape[-1]
    if size > LARGEST_MATRIX or x.shape[-2] != size:
        raise ImportRefusal(f"matrices of {x.shape[-2]} x {size}; at most {LARGEST_MATRIX} x {LARGEST_MATRIX}")
    shape = ctx.shape(node.output)
    places = c_order(x.shape).reshape(*shape, size, size)
    image = natural_image(shape)
    f = FormulaBuilder(node, ctx, image.shape, image)
    entry = [[build.lay_out(build.rearrange(places[..., i, j], x), image) for j in range(size)] for i in range(size)]
    total: Value | None = None
    for order in permutations(range(size)):
        product = reduce(f.mul, (entry[i][j] for i, j in enumerate(order)))
        odd = np.linalg.det(np.eye(size)[list(order)]) < 0
        total = product if total is None else (f.sub if odd else f.add)(total, product)
    assert total is not None, "a matrix has rows"
    f.finish(total)
