"""Tells which operand of a node is made last: the node works on its cores, as the others wait for it."""

from raptor.graph.ir import Dot, Filter, Graph, Rename

Born = tuple[int, int]
"""When a tensor is made: the number of the last layer or product that it waits for, and its own number."""


def births(graph: Graph) -> dict[str, Born]:
    """Returns when each tensor is made; those that are made later compare as greater.

    Other nodes than layers and products work on the cores of an operand, and are done soon after it. So their place
    among the nodes does not matter: a shortcut may be scaled behind the layers that it passes by, or in front of them.
    A tensor that is only renamed was made with its operand.
    """
    found: dict[str, Born] = dict.fromkeys(graph.inputs, (-1, -1))
    for number, node in enumerate(graph.nodes):
        given = [found[name] for name in node.inputs if name in found]
        if isinstance(node.operator, Rename) and given:
            found[node.output] = given[0]
        elif isinstance(node.operator, Filter | Dot):
            found[node.output] = number, number
        else:
            found[node.output] = max((waited for waited, _ in given), default=-1), number
    return found
