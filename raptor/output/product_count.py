"""Number of matrix-vector products of the nodes of a program, which no back end changes."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from raptor.graph.window import cached_input_pixels
from raptor.pim.ir import PimProgram
from raptor.pim.operations import Buffer
from raptor.pim.step_columns import FormTable, Ints
from raptor.spatial.operations import ApplyFilters, ApplyLine, Operation


def count_products(program: PimProgram) -> Mapping[str, int]:
    """Returns the number of products of a sample by name of the node; nodes without products are left out."""
    found: defaultdict[str, int] = defaultdict(int)
    known: dict[int, Ints] = {}
    for core in program.cores.values():
        steps = core.steps
        table = id(steps.forms)
        if table not in known:
            known[table] = _products_by_form(steps.forms)
        by_node = np.bincount(steps.node, known[table][steps.form], len(steps.nodes))
        for node in np.flatnonzero(by_node).tolist():
            found[steps.nodes[node]] += int(by_node[node])
    return found


def _products_by_form(forms: FormTable) -> Ints:
    return np.array([_products(form.operation) for form in forms.forms], np.int64)


def _products(operation: Operation[Buffer]) -> int:
    match operation:
        case ApplyLine():
            return len(operation.products)
        case ApplyFilters():
            return int((cached_input_pixels(operation.window)[:, list(operation.taps)] >= 0).sum())
        case _:
            return 0
