"""Imports one node: in integers by its rule, or by its importer."""

from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import OperatorImporter, find_rule
from raptor.frontend.types.float32_integers import is_integer_type, is_small_float


def import_node(node: NodeView, context: ImportContext, found: OperatorImporter) -> None:
    """Adds a node: in integers if its inputs are quantised and its integer rule applies, else by its importer.

    Raises `ImportRefusal` for an input of a type that the importer does not accept.
    """
    if any(i in context.views for i in node.inputs):
        rule = find_rule(node.op_type)
        if rule is not None and rule(node, context):
            return
    integers = [i for i in node.inputs if i in context.tensors and context.tensors[i].element.kind == "int"]
    if integers and not found.accepts_codes and not all(i in context.views for i in integers):
        raise ImportRefusal(
            f"its input '{integers[0]}' is of integers; only moves, pools and quantised operators take them"
        )
    for name in (i for i in node.inputs if i in context.tensors and context.tensors[i].element.kind == "float"):
        kind = context.numpy_dtype(name)
        if (is_integer_type(kind) and not found.accepts_integers) or (
            is_small_float(kind) and not context.is_cast_of_input(node)
        ):
            raise ImportRefusal(f"its input '{name}' is {kind}, which it does not take")
    found.function(node, context)
    context.determine_ranges(node)
