"""Finds moves of computed tensors that get cores of their own because of the work behind them.

Element-wise functions, pools and moves by line run where their operand is. A move that joins results of several layers
is made on the cores of one of them, which may be a single core. What follows is then on that core, too, up to the next
layer. With cores of its own, each for some columns, a move and all that follows is on as many cores as it needs.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raptor.graph.ir import Dot, Elementwise, Filter, Graph, Move, Node, Pool, Stencil, Take
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.streaming_layout import MOST_LINES
from raptor.mapping.modes.critical_operand import find_critical_positions
from raptor.mapping.modes.line_streaming import ChannelRanges, find_gathers, find_views
from raptor.mapping.modes.operator_cost import copies_ns, operator_ns
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class SpreadMoves:
    """Moves of computed tensors with cores of their own, by name of the result.

    following: results of later moves whose lines are made on these cores, each where it finds its elements.
    """

    moves: Mapping[str, Node] = field(default_factory=dict[str, Node])
    following: frozenset[str] = frozenset()

    def gathers(self, graph: Graph, parts: Mapping[str, ChannelRanges]) -> dict[str, Node]:
        """Returns all moves and lookups that have cores of their own (`find_gathers`), by name of the result."""
        found = find_gathers(graph, parts)
        return {name: node for name, node in found.items() if name not in self.following} | {**self.moves}


NO_SPREAD_MOVES = SpreadMoves()


def can_spread(
    graph: Graph, node: Node, parts: Mapping[str, ChannelRanges], views: set[str], readers: Sequence[Node]
) -> bool:
    """True if a move makes lines of computed tensors with lines, so that each of some cores can make some columns.

    `parts`: see `line_channel_ranges`. `views`: see `find_views`; layers and products that read one make what they
    need. `readers`: of the result.
    """
    if not isinstance(node.operator, Move) or views.intersection(node.inputs):
        return False
    by_line = Elementwise | Pool | Stencil
    if node.output in views and not all(isinstance(reader.operator, by_line) for reader in readers):
        return False
    return parts.keys() >= {*node.inputs, node.output} and not {*graph.inputs}.issuperset(node.inputs)


@dataclass(frozen=True, slots=True)
class MoveWork:
    """The moves that can have cores of their own, by name of the result, and the work behind them.

    work_ns: time on one core of a move and all that runs behind it on the same cores. followed: by name of the result
    of a later move, the one behind which it is made.
    """

    moves: Mapping[str, Node]
    work_ns: Mapping[str, float]
    followed: Mapping[str, str]

    def spread(self, least_ns: float) -> SpreadMoves:
        """Returns the moves whose work is at least `least_ns`, which is more than 0, with those that follow them."""
        chosen = {name: node for name, node in self.moves.items() if self.work_ns[name] >= least_ns}
        return SpreadMoves(chosen, frozenset(name for name, first in self.followed.items() if first in chosen))


def find_move_work(graph: Graph, parts: Mapping[str, ChannelRanges], arch: Target) -> MoveWork:
    """Returns the moves of computed tensors that can have cores of their own, and the work behind them.

    Behind a move are functions of its result, up to the next layers, and moves of results of these alone that make each
    line of few lines.
    """
    views, made, readers = find_views(graph, parts), find_critical_positions(graph), graph.readers()
    owner: dict[str, str] = {}
    moves: dict[str, Node] = {}
    followed: dict[str, str] = {}
    work_ns = defaultdict[str, float](float)
    for node in graph.nodes:
        name = node.output
        if isinstance(node.operator, Filter | Dot | Take) or name not in parts:
            continue
        given = [each for each in node.inputs if each in owner]
        lead = max(given, key=made.__getitem__, default=None)
        if can_spread(graph, node, parts, views, readers.get(name, ())):
            joins = len({owner.get(each, "") for each in node.inputs}) > 1
            follows = _keeps_places if name in views else _makes_lines_of_few
            if lead is None or joins or not follows(graph, node):
                owner[name], moves[name] = name, node
            else:
                owner[name] = followed[name] = owner[lead]
            work_ns[owner[name]] += copies_ns(graph, node, arch)
        elif lead is not None:
            owner[name] = owner[lead]
            work_ns[owner[name]] += operator_ns(graph, node, arch)
    return MoveWork(moves, work_ns, followed)


def _makes_lines_of_few(graph: Graph, node: Node) -> bool:
    """True if each line of a moved tensor takes elements of few lines."""
    assert isinstance(node.operator, Move)
    given = [graph.tensors[name].image for name in node.inputs]
    places = MoveOrigins.from_sources(node.operator.sources, graph.tensors[node.output].image, given)
    return places.most_lines(node.inputs) <= MOST_LINES


def _keeps_places(graph: Graph, node: Node) -> bool:
    """Checks whether each pixel of a moved tensor takes its elements from the pixel at the same place of its operands.

    An operand may have fewer columns, each of which several neighbouring pixels read. So lines of a move and of its
    operands can be cut at the same columns.
    """
    assert isinstance(node.operator, Move)
    image, given = graph.tensors[node.output].image, [graph.tensors[name].image for name in node.inputs]
    if any(each.rows != image.rows or image.width % each.width for each in given):
        return False
    places = MoveOrigins.from_sources(node.operator.sources, image, given)
    widths = np.array([*(each.width for each in given), 1])[places.tensor]
    line, col = np.indices((image.rows, image.width))
    same = (places.line == line[..., None]) & (places.col == col[..., None] * widths // image.width)
    return bool((same | (places.tensor < 0)).all())
