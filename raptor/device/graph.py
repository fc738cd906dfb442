"""Graphs of products: built first, then scheduled on crossbars, then run.

    with device.graph("min_writes") as graph:
        y = matmul(graph, a, b)
    y.result()

A node of the graph is a product, which needs a crossbar, or a host function. A node with several readers is computed
once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raptor.device.back_end import Array, DeviceInfo
from raptor.device.crossbar import Crossbar, CrossbarOwner
from raptor.device.errors import DeviceError, ShapeError
from raptor.device.futures import AnyFuture, CallCountdown, Future, peek_result, run_queued

HostCallable = Callable[..., Any]
"""A host function: from arrays to an array."""


@dataclass(eq=False, slots=True)
class GraphValue:
    """A value of the graph, an array of `shape`, computed from the nodes `operands`."""

    number: int
    shape: tuple[int, ...]
    operands: "tuple[GraphValue, ...]"
    _future: AnyFuture | None = field(default=None, init=False, repr=False)

    def result(self, timeout: float | None = None) -> Array:
        """Returns the value after the graph has started. Raises `DeviceError` before that, or the failure."""
        return self.future.result(timeout)

    @property
    def future(self) -> AnyFuture:
        """The future of the value, after the graph has started."""
        if self._future is None:
            raise DeviceError("the graph does not run yet: it begins at the end of its with statement")
        return self._future

    @property
    def is_running(self) -> bool:
        """True after the graph has issued the node."""
        return self._future is not None

    def set_future(self, future: AnyFuture) -> None:
        """Sets the future of the value."""
        self._future = future


ArrayOrNode = npt.ArrayLike | GraphValue


@dataclass(eq=False, slots=True)
class ProductNode(GraphValue):
    """Vectors [n, rows] times a matrix [rows, columns], on one crossbar. `key`: equal for equal matrices."""

    vectors: Any
    matrix: Any
    key: str

    @property
    def macs(self) -> int:
        """Number of multiply-accumulates."""
        return self.shape[0] * self.shape[1] * self.matrix.shape[0]


@dataclass(eq=False, slots=True)
class HostFunction(GraphValue):
    """A host function. `operations`: number of arithmetic operations that it performs."""

    function: HostCallable
    operations: int


@dataclass(frozen=True, slots=True)
class PlacedProduct:
    """Schedule entry of a product: its crossbar, start step, and the step before which the host waits for it.

    writes: whether its matrix is written first; otherwise the previous product on the crossbar has an equal matrix.
    """

    op: ProductNode
    crossbar: int
    start_step: int
    await_step: int
    writes: bool


SchedulerFunction = Callable[["ProductGraph", int], Sequence[PlacedProduct]]
"""A scheduler: assigns each product of a graph a step and one of the given number of crossbars."""


class ProductGraph:
    """Products and host functions, in the order in which they were added; made by `Device.graph`.

    A context manager: at its end the graph is scheduled and runs, and the values of its nodes are futures.
    """

    def __init__(self, device: CrossbarOwner, schedule: SchedulerFunction, crossbars: int | None) -> None:
        self.device = device
        self.info: DeviceInfo = device.info
        self.nodes: list[GraphValue] = []
        self.placed: Sequence[PlacedProduct] = ()
        """Schedule entries of all products, after the graph has started."""
        self._schedule, self._crossbars = schedule, crossbars

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.run()

    @property
    def products(self) -> list[ProductNode]:
        return [node for node in self.nodes if isinstance(node, ProductNode)]

    @property
    def share(self) -> float:
        """Fraction of the work on crossbars: multiply-accumulates there, divided by these plus host operations."""
        on_crossbars = sum(op.macs for op in self.products)
        on_host = sum(node.operations for node in self.nodes if isinstance(node, HostFunction))
        return on_crossbars / max(1, on_crossbars + on_host)

    def product(self, vectors: ArrayOrNode, matrix: ArrayOrNode) -> ProductNode:
        """Adds vectors [n, rows] times a matrix [rows, columns] that fits a crossbar; both may be nodes."""
        rows, cols = self.info.xbar
        a, b = (value if isinstance(value, GraphValue) else np.array(value) for value in (vectors, matrix))
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0] or b.shape[0] > rows or b.shape[1] > cols:
            raise ShapeError(
                f"{a.shape} times {b.shape} is no product for a crossbar of {rows} rows and {cols} columns"
            )
        key = f"node {b.number}" if isinstance(b, GraphValue) else _digest(b)
        nodes = tuple(value for value in (a, b) if isinstance(value, GraphValue))
        node = ProductNode(len(self.nodes), (a.shape[0], b.shape[1]), nodes, a, b, key)
        self.nodes.append(node)
        return node

    def host(
        self, function: HostCallable, operands: Sequence[GraphValue], shape: tuple[int, ...], operations: int = 0
    ) -> HostFunction:
        """Adds a host function from arrays to an array of `shape`. `operations`: see `HostFunction`."""
        node = HostFunction(len(self.nodes), shape, tuple(operands), function, operations)
        self.nodes.append(node)
        return node

    def run(self) -> None:
        """Schedules all products, acquires crossbars, issues all nodes, and releases the crossbars when all are done.

        Raises `DeviceError` for a schedule that violates `check_schedule`, and if no crossbar is free.
        """
        count = self._crossbars or max(1, self.device.free)
        self.placed = sorted(self._schedule(self, count), key=lambda placed: placed.start_step)
        check_schedule(self, self.placed, count)
        handles: dict[int, Crossbar] = {}
        try:
            for index in sorted({placed.crossbar for placed in self.placed}):
                handles[index] = self.device.acquire()
            self._issue(handles)
        finally:
            for handle in handles.values():
                handle.release()

    def _issue(self, handles: dict[int, Crossbar]) -> None:
        """Issues products in the order of the schedule; host functions run when their operands are ready."""
        for placed in self.placed:
            for node in _before(placed.op):
                node.set_future(self._on_host(node))
            handle = handles[placed.crossbar]
            if placed.writes:
                handle.write(_given(placed.op.matrix))
            placed.op.set_future(handle.matmat(_given(placed.op.vectors)))
        for node in self.nodes:
            if isinstance(node, HostFunction) and not node.is_running:
                node.set_future(self._on_host(node))

    def _on_host(self, node: HostFunction) -> AnyFuture:
        operands = [operand.future for operand in node.operands]
        ready_ns = max([f.ready_ns for f in operands if isinstance(f, Future)], default=0.0)
        future: Future[Array] = Future(self.device.serial, ready_ns, node.shape)
        left = CallCountdown(len(operands))

        def compute() -> None:
            try:
                future.set_result(np.asarray(node.function(*map(peek_result, operands))).reshape(node.shape))
            except BaseException as e:  # any exception is the failure of the node
                future.set_exception(e)

        def count(_: AnyFuture) -> None:
            if left.count_down():
                run_queued(compute)

        for operand in operands:
            operand.add_done_callback(count)
        if not operands:
            compute()
        return future


def _digest(matrix: Array) -> str:
    return f"{matrix.dtype} {matrix.shape} {sha256(np.ascontiguousarray(matrix).tobytes()).hexdigest()}"


def _given(value: Any) -> Any:
    return value.future if isinstance(value, GraphValue) else value


def _before(op: GraphValue) -> Iterator[HostFunction]:
    """Yields the host functions that a product depends on and that do not run yet, operands first."""
    for operand in op.operands:
        if not operand.is_running:
            yield from _before(operand)
            if isinstance(operand, HostFunction) and not operand.is_running:
                yield operand


def compute_ready_steps(graph: ProductGraph, placed: Sequence[PlacedProduct]) -> dict[GraphValue, int]:
    """Returns the step at whose start each node is ready. A product takes one step, a host function none."""
    end: dict[GraphValue, int] = {place.op: place.start_step + 1 for place in placed}
    for node in graph.nodes:
        if isinstance(node, HostFunction):
            end[node] = max([end[operand] for operand in node.operands], default=0)
    return end


def check_schedule(graph: ProductGraph, placed: Sequence[PlacedProduct], crossbars: int) -> None:
    """Raises `DeviceError` for a schedule that would not compute the graph.

    Every product has one entry; it starts after its operands are ready; a crossbar computes one product at a time; a
    matrix that is not written is present; the host waits after the end.
    """
    if sorted(p.op.number for p in placed) != [op.number for op in graph.products]:
        raise DeviceError("the schedule does not place every product once")
    end = compute_ready_steps(graph, placed)
    for p in placed:
        if p.start_step < max([end[operand] for operand in p.op.operands], default=0):
            raise DeviceError(f"product {p.op.number} starts in step {p.start_step}, before its operands are ready")
        if p.await_step <= p.start_step or not 0 <= p.crossbar < crossbars:
            raise DeviceError(f"product {p.op.number}: awaited in step {p.await_step} on crossbar {p.crossbar}")
    for index in {p.crossbar for p in placed}:
        _check_crossbar(sorted((p for p in placed if p.crossbar == index), key=lambda p: p.start_step))


def _check_crossbar(work: Sequence[PlacedProduct]) -> None:
    if not work[0].writes:
        raise DeviceError(f"product {work[0].op.number}: its crossbar holds no matrix, and the schedule writes none")
    for before, after in pairwise(work):
        if before.start_step == after.start_step:
            raise DeviceError(f"products {before.op.number} and {after.op.number} are on one crossbar in one step")
        if not after.writes and before.op.key != after.op.key:
            raise DeviceError(f"product {after.op.number}: its crossbar holds another matrix, and none is written")
