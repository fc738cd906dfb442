"""The pipeline: passes from the imported graph to instruction streams.

A pass is a plain function. The types of its parameters say what it works on: the graph, the chip, the decision, results
of earlier passes. Its result replaces the value of the same type. The name of a pass is the name of its function.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any, TypeVar, get_type_hints

from raptor import codegen, pim, spatial
from raptor.codegen import Streams
from raptor.driver import Driver
from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.depthwise import use_vector_unit, use_views
from raptor.mapping.paces import paced
from raptor.pim import PimProgram
from raptor.spatial import Partition, PlacedGraph, Schedule
from raptor.spatial.orders import STORED, Aim
from raptor.target.arch import Target
from raptor.transforms.choose_recipes import Requantising, choose_recipes, verify_graph
from raptor.transforms.fold_relu import fold_relu

T = TypeVar("T")
Pass = Callable[..., Any]
Results = dict[str, Any]
"""Results of passes, by the names of these."""

PREPARATION: tuple[Pass, ...] = (fold_relu, choose_recipes)
"""Passes before the decision, which is about the graph that they return."""

LOWERING: tuple[Pass, ...] = (
    use_vector_unit,
    use_views,
    spatial.partition,
    spatial.place_cores,
    spatial.schedule,
    pim.map_global_memory,
    pim.lower,
    pim.reuse_operands,
    pim.allocate,
    codegen.generate,
)
"""Passes after the decision."""

_PARTITIONED: Pass = spatial.place_cores
"""The pass after which the results so far can be checked beside those that follow.

The partition takes longest to check, and needs the dataflow, which this pass finds.
"""

INVARIANTS: Mapping[type, Pass] = {
    Graph: verify_graph,
    Partition: spatial.verify_partition,
    PlacedGraph: spatial.verify_placed,
    Schedule: spatial.verify_schedule,
    PimProgram: pim.verify,
    Streams: codegen.verify_streams,
}
"""Checks of values by type; a check raises `VerifyError` for a wrong value.

Its first parameter is the value; the others are found by type, as for a pass. This is a table and the checks are not
methods, because they import the classes. Values of other types have no check: an error in them shows in later values.
"""


class Values:
    """The values of a compilation, at most one of each type: the input and the last results of passes."""

    def __init__(self, *given: object) -> None:
        self._by_type: dict[type, Any] = {type(value): value for value in given}

    def __getitem__(self, kind: type[T]) -> T:
        return self._by_type[kind]

    def for_(self, step: Pass) -> list[Any]:
        """Returns the arguments of a pass, in the order of its parameters."""
        return [self._by_type[kind] for kind in takes(step)]

    def with_(self, value: object) -> "Values":
        """Returns these values, with `value` in place of the one of its type."""
        return Values(*(self._by_type | {type(value): value}).values())


@cache
def takes(step: Pass) -> tuple[type, ...]:
    """Returns the types of the parameters of a pass, without `self`."""
    hints = get_type_hints(step)
    return tuple(hints[name] for name in inspect.signature(step).parameters if name != "self")


def run(
    graph: Graph,
    decision: Decision,
    arch: Target,
    *,
    aim: Aim = STORED,
    driver: Driver | None = None,
    upto: str = "",
    known: Results | None = None,
) -> Values:
    """Lowers a prepared graph as decided, up to the pass `upto`, or to the end. Returns the last value of each type.

    The order of work is chosen by `aim`; the flow of `Schedule` names it. A pass whose result is `known` from a run for
    the same decision is not run again, but its result is checked and shown like any other; results that are not are
    added.

    Raises `CapacityError` if the chip is too small.
    """
    timed = paced(arch, decision.pace)  # for every pass, so that nothing in the program depends on other times
    return _run(LOWERING, Values(graph, decision, timed, aim), driver or Driver(), upto, known)


def prepare(
    graph: Graph, arch: Target, requantising: Requantising | None = None, *, driver: Driver | None = None
) -> Graph:
    """Runs the passes before the decision on an imported graph. Returns the graph that a decision is about."""
    return _run(PREPARATION, Values(graph, arch, requantising or Requantising()), driver or Driver())[Graph]


def _run(
    passes: tuple[Pass, ...], values: Values, driver: Driver, upto: str = "", known: Results | None = None
) -> Values:
    for step in passes:
        stage = step if known is None else _once(step, known)
        values = values.with_(driver.run(stage, partial(verify, values), *values.for_(step)))
        if step is _PARTITIONED:
            driver.start_checks()
        if step.__name__ == upto:
            break
    return values


def _once(step: Pass, known: Results) -> Pass:
    """Returns a pass of the same name, which runs only if its result is not known, and adds it."""

    @wraps(step)
    def stage(*args: Any) -> Any:
        if step.__name__ not in known:
            known[step.__name__] = step(*args)
        return known[step.__name__]

    return stage


def verify(values: Values, result: object) -> None:
    """Raises `VerifyError` if the result of a pass breaks an invariant of its type."""
    check = INVARIANTS.get(type(result))
    if check is not None:
        check(result, *(values[kind] for kind in takes(check) if kind is not type(result)))
