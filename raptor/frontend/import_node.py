"""Imports one node: in integers by its rule, or by its importer."""

from raptor.frontend.import_refusal import Refusal
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.registry import Importer, find_rule
from raptor.frontend.whole import is_small_float, is_whole_type


def apply(node: NodeView, context: ImportContext, found: Importer) -> None:
    """Adds a node: in integers if its inputs are quantised and its integer rule applies, else by its importer.

    Raises `Refusal` for an input of a type that the importer does not accept.
    """
    if any(i in context.views for i in node.inputs):
        rule = find_rule(node.op_type)
        if rule is not None and rule(node, context):
            return
    integers = [i for i in node.inputs if i in context.tensors and context.tensors[i].element.kind == "int"]
    if integers and not found.integers and not all(i in context.views for i in integers):
        raise Refusal(f"its input '{integers[0]}' is of integers; only moves, pools and quantised operators take them")
    for name in (i for i in node.inputs if i in context.tensors and context.tensors[i].element.kind == "float"):
        kind = context.kind(name)
        if (is_whole_type(kind) and not found.whole) or (is_small_float(kind) and not context.is_cast_of_input(node)):
            raise Refusal(f"its input '{name}' is {kind}, which it does not take")
    found.function(node, context)
    context.settle(node)
