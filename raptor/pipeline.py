"""The pipeline: passes from the imported graph to instruction streams.

A pass is a plain function. Its parameters say by their types what it works on: the chip, the decision, and what passes
before it returned. What it returns takes the place of what there was of that type. Its name is the function's name.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar, get_type_hints

from raptor import codegen, pim, spatial
from raptor.codegen import Streams
from raptor.driver import Driver
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.depthwise import use_vector_unit
from raptor.mapping.fold_relu import fold_relu
from raptor.pim import PimProgram
from raptor.spatial import Partition, PlacedGraph, Schedule
from raptor.target.arch import Arch

T = TypeVar("T")
Pass = Callable[..., Any]

PREPARATION: tuple[Pass, ...] = (fold_relu,)
"""Before the decision, which is about the graph that these return."""

LOWERING: tuple[Pass, ...] = (
    use_vector_unit,
    spatial.partition,
    spatial.place_cores,
    spatial.schedule,
    pim.map_global_memory,
    pim.place,
    pim.reuse_operands,
    pim.allocate,
    codegen.generate,
)
"""After the decision."""

INVARIANTS: Mapping[type, Pass] = {
    Graph: Graph.verify,
    Partition: spatial.verify_partition,
    PlacedGraph: spatial.verify_placed,
    Schedule: spatial.verify_schedule,
    PimProgram: pim.verify,
    Streams: codegen.verify_streams,
}
"""By type: what raises `VerifyError` for a value that breaks a promise; then come what else it needs, as for a pass.

A table, not methods: the checks import the classes. Values of other types are checked by what is made of them.
"""


class Values:
    """One value of each type: what a compilation has come to."""

    def __init__(self, *given: object) -> None:
        self._by_type: dict[type, Any] = {type(value): value for value in given}

    def __getitem__(self, kind: type[T]) -> T:
        return self._by_type[kind]

    def for_(self, step: Pass) -> list[Any]:
        """The arguments of a pass, in the order of its parameters."""
        return [self._by_type[kind] for kind in takes(step)]

    def with_(self, value: object) -> "Values":
        """All of these, but `value` for that of its type."""
        return Values(*(self._by_type | {type(value): value}).values())


@cache
def takes(step: Pass) -> tuple[type, ...]:
    """The types of the parameters of a pass."""
    hints = get_type_hints(step)
    return tuple(hints[name] for name in inspect.signature(step).parameters if name != "self")


def run(graph: Graph, decision: Decision, arch: Arch, *, driver: Driver | None = None, upto: str = "") -> Values:
    """Lowers a prepared graph as was decided; with `upto`, to the pass of that name.

    Raises `CapacityError` for a chip that is too small. What it returns holds the last value of each type.
    """
    return _run(LOWERING, Values(graph, decision, arch), driver or Driver(), upto)


def prepare(graph: Graph, arch: Arch, *, driver: Driver | None = None) -> Graph:
    """The graph that a decision is about, of an imported one."""
    return _run(PREPARATION, Values(graph, arch), driver or Driver())[Graph]


def _run(passes: tuple[Pass, ...], values: Values, driver: Driver, upto: str = "") -> Values:
    for step in passes:
        values = values.with_(driver.run(step, partial(verify, values), *values.for_(step)))
        if step.__name__ == upto:
            break
    return values


def verify(values: Values, result: object) -> None:
    """Raises `VerifyError` if what a pass returned breaks an invariant of its type."""
    check = INVARIANTS.get(type(result))
    if check is not None:
        check(result, *(values[kind] for kind in takes(check) if kind is not type(result)))
