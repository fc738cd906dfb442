"""Determinants of small matrices."""

from functools import reduce
from itertools import permutations

import numpy as np

from raptor.frontend.building import Builder
from raptor.frontend.constants import natural_image
from raptor.frontend.formulas import Formula, Value
from raptor.frontend.import_refusal import Refusal
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.moves import c_order

LARGEST = 4
"""Maximum size of the matrices: the sum has one product for each permutation of the rows."""


@importer("Det", since=11, limits=f"matrices of at most {LARGEST} rows")
def import_det(node: NodeView, ctx: ImportContext) -> None:
    """Determinant by the Leibniz formula: the sum of signed products over all permutations."""
    build, x = Builder(node, ctx), ctx.tensor(node.inputs[0])
    size = x.shape[-1]
    if size > LARGEST or x.shape[-2] != size:
        raise Refusal(f"matrices of {x.shape[-2]} x {size}; at most {LARGEST} x {LARGEST}")
    shape = ctx.shape(node.output)
    places = c_order(x.shape).reshape(*shape, size, size)
    image = natural_image(shape)
    f = Formula(node, ctx, image.shape, image)
    entry = [[build.laid(build.arranged(places[..., i, j], x), image) for j in range(size)] for i in range(size)]
    total: Value | None = None
    for order in permutations(range(size)):
        product = reduce(f.mul, (entry[i][j] for i, j in enumerate(order)))
        odd = np.linalg.det(np.eye(size)[list(order)]) < 0
        total = product if total is None else (f.sub if odd else f.add)(total, product)
    assert total is not None, "a matrix has rows"
    f.finish(total)
