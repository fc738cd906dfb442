"""Chooses for each requantisation how the vector unit computes it, and proves that the result is the definition's."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from raptor.common.errors import UserError, VerifyError
from raptor.common.option_values import Requant
from raptor.common.spelling import option
from raptor.graph.instruction import Instruction
from raptor.graph.ir import Graph, Node, Requantise
from raptor.graph.prove import prove
from raptor.graph.recipes import NoRecipeError, exact, short
from raptor.graph.select_instruction import instruction, prove_instruction
from raptor.graph.steps import Recipe


@dataclass(frozen=True, slots=True)
class Requantising:
    """Method of computing requantisations: exactly, with short multipliers, or by the extended instruction."""

    how: Requant = "exact"


def choose_recipes(graph: Graph, requantising: Requantising) -> Graph:
    """Returns the graph in which each requantisation has a recipe, or an instruction if that is chosen and can do it.

    Raises `UserError` that names a node whose numbers do not fit words of 32 bits.
    """
    return replace(graph, nodes=tuple(_with_recipe(node, requantising.how) for node in graph.nodes))


def _with_recipe(node: Node, how: Requant) -> Node:
    if not isinstance(node.operator, Requantise):
        return node
    try:
        return replace(node, operator=replace(node.operator, recipe=_recipe(node.operator, how)))
    except NoRecipeError as error:
        raise UserError(f"{node.name} ({node.op_type}): {error}") from None


def _recipe(operator: Requantise, how: Requant) -> Recipe | Instruction:
    if how == "instruction":
        return instruction(operator) or exact(operator)
    return short(operator) if how == "short" else exact(operator)


def flip_notes(graph: Graph) -> Iterator[str]:
    """Yields a note if recipes round some sums otherwise than the definition: how many, and where most."""
    flips = {n.name: _flips(n.operator) for n in graph.nodes if isinstance(n.operator, Requantise)}
    total = sum(flips.values())
    if total:
        worst = max(flips, key=lambda name: flips[name])
        layers = sum(count > 0 for count in flips.values())
        yield (
            f"{option('requant', 'short')}: {total:,} values of sums, over all channels of {layers} of {len(flips)} "
            f"requantisations, round otherwise than the definition, most ({flips[worst]:,}) at {worst}"
        )


def _flips(operator: Requantise) -> int:
    return operator.recipe.flips if isinstance(operator.recipe, Recipe) else 0


def verify_graph(graph: Graph) -> None:
    """Raises `VerifyError` for a wrong graph, or a recipe whose results differ from the definition."""
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
    match operator.recipe:
        case Instruction() as found:
            prove_instruction(operator, found)
        case Recipe() as recipe:
            prove(operator, recipe)
        case None:
            pass
