"""Options of products of two computed tensors, such as attentions: cores for lines (heads) and for pixels (queries).

Each core computes some pixels of some lines of a product, with all that follows on these pixels: a softmax, and further
products of the result. For each product, it needs the second operand of its lines whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raptor.graph.ir import Dot, Elementwise, Graph, Rename, Softmax
from raptor.mapping.allocation.core_division import CoreOption
from raptor.mapping.decision import DotGrid
from raptor.mapping.knobs import MESSAGE_OVERHEAD_NS
from raptor.mapping.modes.line_streaming import ChannelRanges, can_stream_product, even_ranges, find_views
from raptor.mapping.modes.operator_cost import operator_ns
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, message_ns, vector_ns


@dataclass(slots=True)
class ProductUnit:
    """A product of two computed tensors, and all that follows on its cores.

    lines, pixels: of the result. first_ns: time to receive a line of the first operand; 0 if that is a view, which is
    on no core. line_ns: time on one core for a line. bringing_ns: time to receive the second operands of a line.
    """

    lines: int
    pixels: int
    first_ns: float
    line_ns: float = 0.0
    bringing_ns: float = 0.0

    @property
    def is_worth_cores(self) -> bool:
        """True if the work takes longer than the messages of the first operand, which else stays where it is."""
        return self.line_ns > self.first_ns

    def core_options(self, name: str, cores: int, correction: float) -> Iterator[CoreOption]:
        """Yields the Pareto front of grids on at most `cores` cores, from few to many.

        `name`: of the first product. `correction`: factor on all times.
        """
        found: dict[int, tuple[float, int, int]] = {}
        for heads in {-(-self.lines // each) for each in range(1, self.lines + 1)}:
            for queries in {-(-self.pixels // each) for each in range(1, self.pixels + 1)}:
                if heads * queries <= cores:
                    each_ns = self.line_ns * -(-self.pixels // queries) / self.pixels + self.bringing_ns
                    way = -(-self.lines // heads) * each_ns, heads, queries
                    found[heads * queries] = min(found.get(heads * queries, way), way)
        fastest_ns = float("inf")
        for count, (core_ns, heads, queries) in sorted(found.items()):
            if core_ns < fastest_ns:
                fastest_ns = core_ns
                grid = DotGrid(even_ranges(self.lines, heads), even_ranges(self.pixels, queries), tuple(range(count)))
                yield CoreOption(count, correction * core_ns, whole={name: grid})


def find_product_units(graph: Graph, parts: Mapping[str, ChannelRanges], arch: Target) -> dict[str, ProductUnit]:
    """Returns the products of computed tensors by line that are worth cores of their own, by name.

    A product of results of an earlier one runs on the cores of that one. `parts`: see `line_channel_ranges`.
    """
    views = find_views(graph, parts)
    owner: dict[str, str] = {}
    found: dict[str, ProductUnit] = {}
    for node in graph.nodes:
        image, name = graph.tensors[node.output].image, node.output
        if isinstance(node.operator, Dot) and can_stream_product(graph, node, parts, views):
            left, right = (graph.tensors[given].image for given in node.inputs)
            first = owner[name] = owner.get(node.inputs[0], name)
            if first == name:
                known = 0.0 if node.inputs[0] in views else message_ns(arch, left.width * left.channels)
                found[name] = ProductUnit(image.rows, image.width, known)
            found[first].line_ns += image.width * right.width * (vector_ns(arch, left.channels, 2) + ISSUE_NS)
            found[first].bringing_ns += message_ns(arch, right.width * right.channels) + MESSAGE_OVERHEAD_NS
        elif isinstance(node.operator, Elementwise | Softmax | Rename):
            same = (given for given in node.inputs if graph.tensors[given].image.has_pixels_of(image))
            lead = next((owner[given] for given in same if given in owner), None)
            if lead is not None:
                owner[name] = lead
                found[lead].line_ns += operator_ns(graph, node, arch) / image.rows
    return {name: unit for name, unit in found.items() if unit.is_worth_cores}
