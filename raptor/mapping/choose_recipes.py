"""Chooses for each requantisation how the vector unit computes it, and proves that the result is the definition's."""

from dataclasses import replace
from functools import lru_cache

from raptor.common.errors import UserError, VerifyError
from raptor.graph.ir import Graph, Node, Requantise
from raptor.graph.prove import prove
from raptor.graph.recipes import NoRecipeError, exact


def choose_recipes(graph: Graph) -> Graph:
    """Returns the graph in which each requantisation has a recipe of published instructions.

    Raises `UserError` that names a node whose numbers do not fit words of 32 bits.
    """
    return replace(graph, nodes=tuple(map(_with_recipe, graph.nodes)))


def _with_recipe(node: Node) -> Node:
    if not isinstance(node.operator, Requantise):
        return node
    try:
        return replace(node, operator=replace(node.operator, recipe=exact(node.operator)))
    except NoRecipeError as error:
        raise UserError(f"{node.name} ({node.op_type}): {error}") from None


def verify_graph(graph: Graph) -> None:
    """Raises `VerifyError` for a wrong graph, or a recipe whose results are not those of the definition."""
    graph.verify()
    for node in graph.nodes:
        if isinstance(node.operator, Requantise) and node.operator.recipe is not None:
            try:
                _prove(node.operator)
            except VerifyError as error:
                raise VerifyError(f"graph: {node.name} ({node.op_type}): {error}") from None


@lru_cache(maxsize=1024)
def _prove(operator: Requantise) -> None:
    """Proves a recipe once, as later passes return graphs with the same operators."""
    if operator.recipe is not None:
        prove(operator, operator.recipe)
