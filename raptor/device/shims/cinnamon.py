"""Cinnamon's interfaces: operations of its `cim` dialect, calls of its runtime library, and its scheduler's hooks.

Source: a master's thesis on compiling PyTorch models with Cinnamon, listings 3.3 to 3.7 and table 3.3. Unlike there,
ids are checked, writes are counted, and a result that does not fit its type is an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from raptor.device.back_end import Array
from raptor.device.backend_registry import open
from raptor.device.crossbar import Crossbar, Operand
from raptor.device.device import Device
from raptor.device.futures import Future
from raptor.device.graph import GraphValue, PlacedProduct, ProductGraph, ProductNode, SchedulerFunction
from raptor.device.shims.tile_buffers import PendingResults

R = TypeVar("R")
A = TypeVar("A")

acquire_device = open
"""`cim.acquire_device`."""


def acquire_crossbar(device: Device) -> Crossbar:
    """`cim.acquire_crossbar`."""
    return device.acquire()


def op_gemm(crossbar: Crossbar, lhs: Operand, rhs: Operand) -> Future[Array]:
    """`cim.op.gemm`: dispatches [m, k] times [k, n]. Operands are arrays or futures."""
    crossbar.write(rhs)
    return crossbar.matmat(lhs)


def op_gemv(crossbar: Crossbar, lhs: Operand, rhs: Operand) -> Future[Array]:
    """`cim.op.gemv`: dispatches a vector [k] times [k, n]."""
    crossbar.write(rhs)
    return crossbar.matvec(lhs)


def barrier(future: Future[Array]) -> Array:
    """`cim.barrier`: waits for a result."""
    return future.result()


def release_crossbar(crossbar: Crossbar) -> None:
    """`cim.release_crossbar`."""
    crossbar.release()


def release_device(device: Device) -> None:
    """`cim.release_device`."""
    device.close()


class MemristorRuntime(PendingResults):
    """The runtime library: numbered tiles, and results in the caller's buffers, complete after a barrier.

    Each function stands for its variants for all element types: `memristor_gemm_i16`, `memristor_gemm_f32` and so on.
    """

    def memristor_write_to_crossbar(self, tile: int, rhs: Array) -> None:
        """Writes a matrix to a tile."""
        self.get_tile(tile).write(rhs)

    def memristor_gemm(self, tile: int, lhs: Array, result: Array) -> None:
        """Starts [m, k] times the matrix of the tile."""
        self.store_later(tile, self.get_tile(tile).matmat(lhs), result)

    def memristor_gevm(self, tile: int, lhs: Array, result: Array) -> None:
        """Starts a vector times the matrix of the tile."""
        self.store_later(tile, self.get_tile(tile).matvec(lhs), result)

    def memristor_barrier(self, tile: int) -> None:
        """Waits for a tile; then its results are in their buffers."""
        self.store_results(tile)


@dataclass(frozen=True, slots=True)
class SchedulingHooks(Generic[R, A]):
    """The four hooks of Cinnamon's scheduling driver.

    `reschedule_operation_filter` selects the products to schedule, `scheduling_strategy` places them,
    `operation_scheduler` makes the dispatch of a product on a resource, and `barrier_inserter` makes its barrier.
    """

    reschedule_operation_filter: Callable[[ProductNode], bool]
    scheduling_strategy: SchedulerFunction
    operation_scheduler: Callable[[ProductNode, R], A]
    barrier_inserter: Callable[[ProductNode], A]


def apply_scheduling(graph: ProductGraph, resources: Sequence[R], hooks: SchedulingHooks[R, A]) -> list[A]:
    """Returns the dispatches and barriers of a graph in the order of the schedule.

    The barriers of a step precede its dispatches. A producer with two consumers is dispatched and awaited once, as late
    as its first reader allows.
    """
    every = hooks.scheduling_strategy(graph, len(resources))
    placed = [place for place in every if hooks.reschedule_operation_filter(place.op)]
    events = [(place.await_step, 0, place) for place in placed] + [(place.start_step, 1, place) for place in placed]
    return [_event(hooks, resources, place, dispatches=bool(kind)) for _, kind, place in sorted(events, key=_order)]


def _order(event: tuple[int, int, PlacedProduct]) -> tuple[int, int, int]:
    return event[0], event[1], event[2].op.number


def _event(hooks: SchedulingHooks[R, A], resources: Sequence[R], place: PlacedProduct, *, dispatches: bool) -> A:
    if dispatches:
        return hooks.operation_scheduler(place.op, resources[place.crossbar])
    return hooks.barrier_inserter(place.op)


def is_cim_op(node: GraphValue) -> bool:
    """Cinnamon's own filter: returns whether an operation needs a crossbar."""
    return isinstance(node, ProductNode)
