"""Finds the critical operand of a node: the one that is made last, on whose cores the node runs."""

from raptor.graph.ir import Dot, Filter, Graph, Rename

CriticalPosition = tuple[int, int]
"""Position of a tensor in the critical path: (number of the last layer or product it depends on, its own number)."""


def find_critical_positions(graph: Graph) -> dict[str, CriticalPosition]:
    """Returns the position of each tensor in the critical path; tensors that are made later compare as greater.

    Nodes other than layers and products run on the cores of an operand, soon after it. So their place in the node order
    does not matter: a shortcut may be scaled before or after the layers that it bypasses. A renamed tensor has the
    position of its operand.
    """
    found: dict[str, CriticalPosition] = dict.fromkeys(graph.inputs, (-1, -1))
    for number, node in enumerate(graph.nodes):
        given = [found[name] for name in node.inputs if name in found]
        if isinstance(node.operator, Rename) and given:
            found[node.output] = given[0]
        elif isinstance(node.operator, Filter | Dot):
            found[node.output] = number, number
        else:
            found[node.output] = max((waited for waited, _ in given), default=-1), number
    return found


def is_early(position: CriticalPosition) -> bool:
    """Checks whether a tensor depends on model inputs and constants only, and on no layer or product."""
    return position[0] < 0
