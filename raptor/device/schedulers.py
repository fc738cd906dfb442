"""Schedulers of graphs of products: `asap`, `alap` and `min_writes`.

`asap` and `alap` write the matrix before every product, as Cinnamon's `op.gemm` and OCC's tiled loop do. `min_writes`
writes a matrix once for all products that can run while it is present, which subsumes OCC's loop interchange.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raptor.common.entry_points import find_entry_points, load_entry_point
from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import argument_error
from raptor.device.errors import DeviceError
from raptor.device.graph import (
    GraphValue,
    HostFunction,
    PlacedProduct,
    ProductGraph,
    ProductNode,
    SchedulerFunction,
    compute_ready_steps,
)

SCHEDULER_GROUP = "raptor.schedulers"
"""Entry point group of schedulers in other packages."""


def asap(graph: ProductGraph, crossbars: int) -> list[PlacedProduct]:
    """Starts each product as soon as it is ready and a crossbar is free."""
    slots, ready, placed = _Slots(crossbars, 1), _Ready(), list[PlacedProduct]()
    for node in graph.nodes:
        step = ready.ready_step(node)
        if isinstance(node, ProductNode):
            start, index = slots.take(step)
            placed.append(PlacedProduct(node, index, start, 0, writes=True))
            step = start + 1
        ready.note(node, step)
    return set_await_steps(graph, placed)


def alap(graph: ProductGraph, crossbars: int) -> list[PlacedProduct]:
    """Starts each product as late as possible: just before its first reader."""
    slots, latest, placed = _Slots(crossbars, -1), dict[GraphValue, int](), list[PlacedProduct]()
    for node in reversed(graph.nodes):
        step = latest.get(node, 0)
        if isinstance(node, ProductNode):
            step, index = slots.take(step - 1)
            placed.append(PlacedProduct(node, index, step, 0, writes=True))
        for operand in node.operands:
            latest[operand] = min(latest.get(operand, 0), step)
    first = min([place.start_step for place in placed], default=0)
    return set_await_steps(graph, [replace(place, start_step=place.start_step - first) for place in reversed(placed)])


def min_writes(graph: ProductGraph, crossbars: int) -> list[PlacedProduct]:
    """Assigns products with equal matrices to the crossbar that holds the matrix, to write as rarely as possible.

    Ready products whose matrix is present come first, then the matrix that most ready products need. It replaces the
    matrix that the fewest remaining products need.
    """
    return set_await_steps(graph, _Reuse(graph, crossbars).placed())


SCHEDULERS: dict[str, SchedulerFunction] = {"asap": asap, "alap": alap, "min_writes": min_writes}


def find_scheduler(schedule: str | SchedulerFunction) -> SchedulerFunction:
    """Returns a scheduler by its name, also of an installed package. Raises `UserError` for other names."""
    if not isinstance(schedule, str):
        if not callable(schedule):
            raise argument_error("schedule", schedule, "the name of a scheduler, or a function")
        return schedule
    if schedule in SCHEDULERS:
        return SCHEDULERS[schedule]
    installed = find_entry_points(SCHEDULER_GROUP)
    if schedule not in installed:
        raise UserError(
            f"{spell_option('schedule', schedule)}: expected one of: {', '.join([*SCHEDULERS, *installed])}"
        )
    return load_entry_point("scheduler", installed[schedule], DeviceError)


def set_await_steps(graph: ProductGraph, placed: Sequence[PlacedProduct]) -> list[PlacedProduct]:
    """Returns the entries with the latest step in which the host must wait for each result.

    That is the step in which the host or a crossbar reads it. Unread results are awaited at the end.
    """
    end = compute_ready_steps(graph, placed)
    last = max(end.values(), default=0)
    start = {place.op: place.start_step for place in placed}
    needed: dict[GraphValue, int] = {}
    for node in reversed(graph.nodes):
        at = start[node] if isinstance(node, ProductNode) else needed.get(node, last)
        for operand in node.operands:
            needed[operand] = min(needed.get(operand, last), at)
    return [replace(place, await_step=needed.get(place.op, last)) for place in placed]


class _Slots:
    """Allocates crossbars to products, at ascending (`direction` 1) or descending (-1) steps."""

    def __init__(self, crossbars: int, direction: int) -> None:
        self._crossbars, self._direction = crossbars, direction
        self._used: Counter[int] = Counter()
        self._skip: dict[int, int] = {}

    def take(self, step: int) -> tuple[int, int]:
        """Takes the first step from `step` on in which a crossbar is free; returns the step and the crossbar."""
        full: list[int] = []
        while self._used[step] == self._crossbars:
            full.append(step)
            step = self._skip.get(step, step + self._direction)
        self._skip.update(dict.fromkeys(full, step))
        self._used[step] += 1
        return step, self._used[step] - 1


@dataclass(slots=True)
class _Ready:
    """The step at whose start each node is ready."""

    at: dict[GraphValue, int] = field(default_factory=dict[GraphValue, int])

    def note(self, node: GraphValue, step: int) -> None:
        self.at[node] = step

    def ready_step(self, node: GraphValue) -> int:
        """Returns the step at which all operands are ready."""
        return max([self.at[operand] for operand in node.operands], default=0)


class _Reuse:
    """State of `min_writes`: ready products by matrix, and the matrix that each crossbar holds."""

    def __init__(self, graph: ProductGraph, crossbars: int) -> None:
        self._missing = Counter({node: len(set(node.operands)) for node in graph.nodes})
        self._users: dict[GraphValue, list[GraphValue]] = {node: [] for node in graph.nodes}
        for node in graph.nodes:
            for operand in set(node.operands):
                self._users[operand].append(node)
        self._uses = Counter(op.key for op in graph.products)
        self._groups: dict[str, list[ProductNode]] = {}
        self._holds: list[str | None] = [None] * crossbars
        self._free = [0] * crossbars
        self._ready, self._placed = _Ready(), list[PlacedProduct]()
        for node in graph.nodes:
            if not node.operands:
                self._arrive([node])

    def placed(self) -> list[PlacedProduct]:
        while self._groups:
            held = [key for key in self._groups if key in self._holds]
            key = held[0] if held else max(self._groups, key=lambda k: len(self._groups[k]))
            index = self._holds.index(key) if held else self._victim()
            self._place(self._groups.pop(key), index)
        return self._placed

    def _victim(self) -> int:
        """Returns the crossbar whose matrix is needed least; on ties, the one that is free first."""
        return min(range(len(self._free)), key=lambda k: (self._uses[self._holds[k] or ""], self._free[k]))

    def _place(self, group: Sequence[ProductNode], index: int) -> None:
        for op in group:
            start = max(self._free[index], self._ready.ready_step(op))
            self._free[index] = start + 1
            self._placed.append(PlacedProduct(op, index, start, 0, writes=self._holds[index] != op.key))
            self._holds[index] = op.key
            self._uses[op.key] -= 1
            self._ready.note(op, start + 1)
        for op in group:
            self._arrive(self._released(op))

    def _released(self, node: GraphValue) -> list[GraphValue]:
        self._missing.subtract(self._users[node])
        return [user for user in self._users[node] if not self._missing[user]]

    def _arrive(self, nodes: list[GraphValue]) -> None:
        """Adds nodes whose operands are all ready. Host functions take no time."""
        while nodes:
            node = nodes.pop()
            if isinstance(node, ProductNode):
                self._groups.setdefault(node.key, []).append(node)
            elif isinstance(node, HostFunction):
                self._ready.note(node, self._ready.ready_step(node))
                nodes += self._released(node)
