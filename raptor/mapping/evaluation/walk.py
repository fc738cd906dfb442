"""State of a walk over the nodes of a graph that adds up the work of a decision."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raptor.graph.ir import Graph, Node
from raptor.graph.layers import filter_key
from raptor.graph.window import Window
from raptor.mapping.decision import Decision, LineFlow
from raptor.mapping.evaluation.cell_layout import GLOBAL_MEMORY, CellLayout, PlacedCell, cells_under
from raptor.mapping.evaluation.graph_facts import GraphFacts
from raptor.mapping.evaluation.node_work import NodeWork, StepNeed
from raptor.mapping.evaluation.region_origins import RegionOrigins
from raptor.mapping.modes.critical_operand import CriticalPosition
from raptor.mapping.modes.line_streaming import Range, cut_channels
from raptor.mapping.modes.window_axis import input_lines_read
from raptor.target.arch import Target
from raptor.target.tensor_layout import Image


class Maker(NamedTuple):
    """Work that makes some channels of a tensor."""

    work: NodeWork
    channels: Range


@dataclass(slots=True)
class WorkWalk:
    """The layouts and the work of the nodes so far.

    layouts: where the elements of each tensor are; views have none until they are materialised. regrouped: tensors by
    the keys of their layouts with other channel ranges. makers: the work that makes each tensor. constants: for each
    core, the elements of its constants, by contents, and the rows that they fill, as (rows, elements of one);
    constant_readers: the first work that reads one. crossbars: crossbars in use on each core. lines_on: pixels of a
    line that were copied to a core, keyed by tensor, line, channel range and core. done: what happens once only
    (`once`). regions: of views, which several cores may ask for.
    """

    graph: Graph
    decision: Decision
    arch: Target
    facts: GraphFacts
    layouts: dict[object, CellLayout] = field(default_factory=dict[object, CellLayout])
    regrouped: dict[str, str] = field(default_factory=dict[str, str])
    makers: dict[str, list[Maker]] = field(default_factory=dict[str, list[Maker]])
    works: list[NodeWork] = field(default_factory=list[NodeWork])
    constants: defaultdict[int, dict[object, tuple[int, set[Range]]]] = field(
        default_factory=lambda: defaultdict(dict[object, tuple[int, set[Range]]])
    )
    constant_readers: dict[int, NodeWork] = field(default_factory=dict[int, NodeWork])
    crossbars: defaultdict[int, int] = field(default_factory=lambda: defaultdict[int, int](int))
    lines_on: defaultdict[object, list[Range]] = field(default_factory=lambda: defaultdict(list[Range]))
    done: set[object] = field(default_factory=set[object])
    regions: dict[object, RegionOrigins] = field(default_factory=dict[object, RegionOrigins])

    @property
    def flow(self) -> LineFlow | None:
        return self.decision.flow if isinstance(self.decision.flow, LineFlow) else None

    def gatherers(self, node: Node) -> tuple[tuple[Range, int], ...]:
        """Returns the columns and cores of a move of model inputs that has cores of its own; none for other nodes."""
        return () if self.flow is None else self.flow.loaders.get(node.output, ())

    def image(self, name: str) -> Image:
        return self.graph.tensors[name].image

    def chip(self, name: str) -> Target:
        """Returns the target with the element type of a tensor."""
        return self.facts.chip(self.regrouped.get(name, name))

    def start_work(self, name: str, steps: int = 1, needs: "list[StepNeed] | None" = None) -> NodeWork:
        """Adds the work that makes a tensor."""
        work = NodeWork(name, len(self.works), steps, needs or [])
        self.works.append(work)
        self.makers[name] = [Maker(work, (0, self.image(name).channels))]
        return work

    def start_by_channels(
        self,
        node: Node,
        steps: int,
        lead: str,
        parts: Sequence[Range],
        *,
        lines: tuple[int, int, int] = (1, 1, 0),
        sums: bool = False,
    ) -> list[NodeWork]:
        """Adds the work of a node; returns the work for each of the channel ranges `parts` of its operand `lead`.

        The operands of a concatenation are made one after another. Channels that are made together have work of their
        own, so that no channel waits for a later one. lines: stride, spread and reach of the lines that are read. sums:
        a result is a sum over all channels, so it is done with the last ones; else it has the channels of the operand.
        """
        alike = [name for name in node.inputs if self.image(name).channels == self.image(lead).channels]
        made = [max((w.number for name in alike for w in self.makers_of(name, part)), default=-1) for part in parts]
        works, makers = dict[int, NodeWork](), list[Maker]()
        for last in sorted({*made}):
            group = [part for part, number in zip(parts, made, strict=True) if number == last]
            needs = self.needs_lines(node, steps, *lines, parts=group if len(group) < len(parts) else None)
            if sums:
                needs += [StepNeed(before, 1, 1, 0) for before in works.values()]
            works[last] = self.start_work(node.output, steps, needs)
            makers += [Maker(works[last], part) for part in group]
        if len(works) > 1 and not sums:
            self.makers[node.output] = makers
        return [works[number] for number in made]

    def makers_of(self, name: str, part: Range | None = None) -> list[NodeWork]:
        """Returns the work that makes a tensor, or a range of its channels."""
        low, high = part or (0, self.image(name).channels)
        found = (work for work, channels in self.makers.get(name, ()) if low < channels[1] and channels[0] < high)
        return list({work.number: work for work in found}.values())

    def needs_all(self, node: Node) -> list[StepNeed]:
        """Returns the needs of a node that reads all lines of its operands first."""
        return [StepNeed(made, 0, 1, made.steps - 1) for name in node.inputs for made in self.makers_of(name)]

    def needs_lines(
        self,
        node: Node,
        rounds: int,
        stride: int = 1,
        spread: int = 1,
        reach: int = 0,
        parts: Sequence[Range] | None = None,
    ) -> list[StepNeed]:
        """Returns the needs of a node in `rounds` steps, each of which needs the same share of an operand's lines.

        An operand with other lines is needed whole. stride, spread, reach: as in `StepNeed`. `parts`: of each operand
        that is a concatenation, only these channels are needed.
        """
        found, slides = list[StepNeed](), (stride, spread, reach) != (1, 1, 0)
        for name in node.inputs:
            ranges = [None] if parts is None or len(self.makers.get(name, ())) == 1 else parts
            works = (work for part in ranges for work in self.makers_of(name, part))
            for made in {w.number: w for w in works}.values():
                by_line = made.steps == (self.image(name).rows if slides else rounds)
                found.append(StepNeed(made, stride, spread, reach) if by_line else StepNeed(made, 0, 1, made.steps - 1))
        return found

    def once(self, *key: object) -> bool:
        """True the first time that it is asked for a key."""
        if key in self.done:
            return False
        self.done.add(key)
        return True

    def lead_order(self, name: str) -> tuple[bool, CriticalPosition]:
        """Returns a key by which the largest operand leads: it is on cores, and made last on the critical path."""
        return self.layouts[name].first_core != GLOBAL_MEMORY, self.facts.critical[name]

    def is_line_layout(self, name: str) -> bool:
        """True if a tensor exists as lines on cores or in global memory."""
        return name in self.layouts and not self.layouts[name].whole

    def same_pixels(self, name: str, other: str) -> bool:
        """True if tensor `name` streams and has as many rows and columns as `other`."""
        return name in self.facts.parts and self.image(name).has_lines_of(self.image(other))

    def bind_tiles(self, name: str, cores: list[int]) -> None:
        """Records whole tiles of a tensor: channel range k is on `cores[k]`, or all on the last core of the list."""
        image, parts = self.image(name), cut_channels(self.image(name).channels, self.facts.tile)
        cells = tuple((PlacedCell(0, image.width, cores[min(k, len(cores) - 1)]),) for k in range(len(parts)))
        self.layouts[name] = CellLayout(image, parts, (cells,), whole=True)

    def constant(self, work: NodeWork, core: int, contents: object, elements: int, rows: int = 1, row: int = 0) -> None:
        """Records that a core reads a constant; equal contents are there once.

        Each of `rows` parts of it fills `row` elements, if these are more.
        """
        self.constants[core].setdefault(contents, (elements, set()))[1].add((rows, max(row, elements // rows)))
        self.constant_readers.setdefault(core, work)

    def move_cell(self, work: NodeWork, name: str, cell: PlacedCell, to: int, elements: int, times: float) -> None:
        """Adds the transfer of elements of a cell to a core, `times` times."""
        if cell.core == GLOBAL_MEMORY:
            work.load(self.chip(name), to, elements, times)
        elif cell.core == to:
            work.copy(self.chip(name), to, elements, times)
        else:
            work.send(self.chip(name), cell.core, to, elements, times)

    def bring_line(
        self,
        work: NodeWork,
        name: str,
        place: tuple[int, int],
        cols: Range,
        core: int,
        *,
        lines: float,
        exact: bool = False,
        alone: bool = False,
        steps: Range | None = None,
    ) -> None:
        """Adds copies of pixels `cols` of `lines` lines to a core, unless it has them; with `exact`, and no others.

        `place`: number of the line and of the channel range. Where all lines are alike, the first one stands for them,
        but for a line `alone`. `steps`: steps of the work in which the copies are made, if not in all.
        """
        layout, part = self.layouts[name], place[1]
        cells = layout.line(place[0])[part]
        row = ("alone", place[0]) if alone else layout.index(place[0])
        held = self.lines_on[name, row, part, core]
        there = [*(c.cols for c in cells if c.core == core), *held]
        if any(cols == have if exact else have[0] <= cols[0] and cols[1] <= have[1] for have in there):
            return
        held.append(cols)
        low, high = layout.parts[part]
        for cell, width in cells_under(cells, cols):
            self.move_cell(work, name, cell, core, width * (high - low), lines)
            if steps is not None and (cell.core, core) in work.messages:
                work.widen_span((cell.core, core), steps)

    def bring_lines(
        self,
        work: NodeWork,
        name: str,
        rows: Range,
        part: int,
        cols: Range,
        core: int,
        *,
        lines: float,
        exact: bool = False,
        steps: Range | None = None,
    ) -> None:
        """Adds copies of pixels `cols` of each of the lines `rows`, of which `lines` are copied; see `bring_line`.

        `steps`: of the work, if not all; they read the same share of `rows` as of the lines of each lane.
        """
        layout = self.layouts[name]
        if not layout.starts and steps is None:
            self.bring_line(work, name, (rows[0], part), cols, core, lines=lines, exact=exact)
            return
        each, (first, stop) = (rows[1] - rows[0]), steps or (0, work.steps)
        for row, count in layout.under(rows):
            low, high = ((first * each + (at - rows[0]) * (stop - first)) / each for at in (row, row + count))
            own = max(first, math.floor(low) - 1), min(stop, math.ceil(high) + 1)
            self.bring_line(work, name, (row, part), cols, core, lines=lines * count / each, exact=exact, steps=own)

    def layer_steps(self, node: Node) -> tuple[int, int]:
        """Returns (number of a time step of a recurrent layer, number of its steps)."""
        steps = self.facts.steps[filter_key(node)]
        return steps.index(node.output), len(steps)


def iterate_tiles(layout: CellLayout) -> Iterator[tuple[int, PlacedCell, int]]:
    """Yields (channel range number, cell, number of equal lines) of all cells of a layout."""
    for line, alike in layout.distinct():
        for part, cells in enumerate(line):
            for cell in cells:
                yield part, cell, alike


def window_steps(window: Window) -> tuple[int, int, int]:
    """Returns (stride, spread, reach) of the lines under a window, as in `StepNeed`."""
    reach = max((line for line, _ in input_lines_read(window)[0]), default=0)
    if window.transposed:
        return window.in_lines, window.out_lines, reach
    return math.prod(window.strides[:-1]), 1, reach
