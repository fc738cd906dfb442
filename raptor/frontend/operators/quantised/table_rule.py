"""Integer rule (`registry.rule`) that lowers functions of one integer of at most 8 bits to lookup tables."""

from raptor.frontend.import_context import ImportContext
from raptor.frontend.integers.lookup_tables import tabulate_node
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import integer_rule


@integer_rule(
    *("Abs", "Celu", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg"),
    *("PRelu", "Pow", "Reciprocal", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh"),
    *("ThresholdedRelu", "Div", "Max", "Min", "Mean"),
)
def tabulate_function(node: NodeView, ctx: ImportContext) -> bool:
    """Computes the function of quantised integers as a lookup table."""
    return tabulate_node(node, ctx)
