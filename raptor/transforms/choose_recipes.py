"""Chooses for each requantisation how the vector unit computes it, and proves that the result is the definition's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from raptor.common.errors import UserError, VerifyError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import Requant
from raptor.graph.ir import Filter, Graph, Node, Requantise
from raptor.graph.requantise.proof import prove_recipe
from raptor.graph.requantise.select_instruction import find_vrequant, prove_vrequant
from raptor.graph.requantise.synthesis import NoRecipeError, find_exact_recipe, find_short_recipe
from raptor.graph.requantise.trim_stage import add_trim_stage
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.requantise.vrequant import VrequantParams


@dataclass(frozen=True, slots=True)
class RequantMethod:
    """Method of computing requantisations: exactly, with short multipliers, or by the extended instruction.

    `trimmable`: requantisations of the sums of layers get a trim stage.
    """

    method: Requant = "exact"
    trimmable: bool = False


def choose_recipes(graph: Graph, requantising: RequantMethod) -> Graph:
    """Returns the graph in which each requantisation has a recipe, or an instruction if that is chosen and can do it.

    Raises `UserError` that names a node whose numbers do not fit words of 32 bits.
    """
    found = replace(graph, nodes=tuple(_with_recipe(node, requantising.method) for node in graph.nodes))
    return _with_trim_stages(found) if requantising.trimmable else found


def _with_trim_stages(graph: Graph) -> Graph:
    """Returns the graph with a trim stage in each requantisation that reads the sums of one layer alone."""
    sums = {node.output: node.name for node in graph.nodes if isinstance(node.operator, Filter)}
    return replace(graph, nodes=tuple(_with_trim_stage(node, graph, sums) for node in graph.nodes))


def _with_trim_stage(node: Node, graph: Graph, sums: Mapping[str, str]) -> Node:
    trimmed = [i for i, name in enumerate(node.inputs) if name in sums]
    if not isinstance(node.operator, Requantise) or len(trimmed) != 1:
        return node
    assert isinstance(node.operator.recipe, RequantiseRecipe), "no instruction has a trim stage"
    tensor = node.inputs[trimmed[0]]
    channels = graph.tensors[tensor].image.channels
    recipe = add_trim_stage(node.operator.recipe, tensor, sums[tensor], trimmed[0], channels)
    return node if recipe is None else replace(node, operator=replace(node.operator, recipe=recipe))


def trim_notes(graph: Graph) -> Iterator[str]:
    """Yields a note if layers have no trim stage: which, and why. `graph`: of a trimmable program."""
    makers = {node.output: node for node in graph.nodes}
    trimmed = {
        node.inputs[node.operator.recipe.trim.operand]
        for node in graph.nodes
        if isinstance(node.operator, Requantise)
        and isinstance(node.operator.recipe, RequantiseRecipe)
        and node.operator.recipe.trim is not None
    }
    others = [n.name for name, n in makers.items() if isinstance(n.operator, Filter) and name not in trimmed]
    if others:
        yield (
            f"{spell_option('trimmable', True)}: no trim for {', '.join(others[:4])}"
            f"{f' and {len(others) - 4} more' if len(others) > 4 else ''}: the sums are not requantised directly and "
            "alone, or need all of 32 bits"
        )


def _with_recipe(node: Node, how: Requant) -> Node:
    if not isinstance(node.operator, Requantise):
        return node
    try:
        return replace(node, operator=replace(node.operator, recipe=_recipe(node.operator, how)))
    except NoRecipeError as error:
        raise UserError(f"{node.name} ({node.op_type}): {error}") from None


def _recipe(operator: Requantise, how: Requant) -> RequantiseRecipe | VrequantParams:
    if how == "instruction":
        return find_vrequant(operator) or find_exact_recipe(operator)
    return find_short_recipe(operator) if how == "short" else find_exact_recipe(operator)


def flip_notes(graph: Graph) -> Iterator[str]:
    """Yields a note if recipes round some sums otherwise than the definition: how many, and where most."""
    flips = {n.name: _flips(n.operator) for n in graph.nodes if isinstance(n.operator, Requantise)}
    total = sum(flips.values())
    if total:
        worst = max(flips, key=lambda name: flips[name])
        layers = sum(count > 0 for count in flips.values())
        yield (
            f"{spell_option('requant', 'short')}: {total:,} values of sums, over all channels of {layers} of "
            f"{len(flips)} "
            f"requantisations, round otherwise than the definition, most ({flips[worst]:,}) at {worst}"
        )


def _flips(operator: Requantise) -> int:
    return operator.recipe.flips if isinstance(operator.recipe, RequantiseRecipe) else 0


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
        case VrequantParams() as found:
            prove_vrequant(operator, found)
        case RequantiseRecipe() as recipe:
            prove_recipe(operator, recipe)
        case None:
            pass
