"""The pipeline: passes from the imported graph to instruction streams.

A pass is a plain function. Its arguments are found by the types of its parameters: the graph, the chip, the decision,
results of earlier passes. Its result replaces the value of the same type. A pass is named after its function.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from raptor import codegen, pim, spatial
from raptor.codegen import InstructionStreams
from raptor.common.errors import UserError
from raptor.compiler.pass_driver import Driver
from raptor.graph.ir import Graph
from raptor.mapping.decide import (
    MappingResult,
    MappingState,
    StoredDecision,
    choose_branches,
    choose_fusion,
    choose_units,
    map,
)
from raptor.mapping.decision import Decision
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import apply_pace, default_pace
from raptor.mapping.refinement import RefinementError
from raptor.mapping.row_mapping import NothingStreamsError
from raptor.mapping.strategies import Strategy
from raptor.pim import PimProgram
from raptor.spatial import Partition, PlacedGraph, Schedule
from raptor.spatial.choose_order import Ordered
from raptor.spatial.refine import Refined
from raptor.spatial.scheduling.order_selection import STORED_ORDER, OrderObjective
from raptor.target.arch import Target
from raptor.transforms.choose_recipes import RequantMethod, choose_recipes, verify_graph
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fold_relu import fold_relu
from raptor.transforms.fold_space_to_depth import fold_space_to_depth
from raptor.transforms.fuse_horizontally import fuse_horizontally
from raptor.transforms.fuse_parallel_branches import fuse_parallel_branches
from raptor.transforms.lay_out_free_tensors import lay_out_free_tensors
from raptor.transforms.lay_out_matmuls import lay_out_matmuls
from raptor.transforms.lay_out_tokens import lay_out_tokens
from raptor.transforms.lift_to_2d import lift_to_2d
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.sink_transposes import sink_transposes
from raptor.transforms.split_rows import split_rows
from raptor.transforms.turn_columns import turn_columns
from raptor.transforms.turn_products import turn_products
from raptor.transforms.use_vector_unit import use_vector_unit

T = TypeVar("T")
Pass = Callable[..., Any]
PassResults = dict[str, Any]
"""Results of passes, by name of the pass."""


def when_streaming(rewrite: Callable[[Graph], Graph]) -> Pass:
    """Wraps a rewrite as a pass that acts only if tensors stream (`RewriteChoice.streaming`)."""

    def step(graph: Graph, rewrites: RewriteChoice) -> Graph:
        return rewrite(graph) if rewrites.streaming else graph

    step.__name__, step.__doc__ = rewrite.__name__, rewrite.__doc__
    return step


PREPARATION: tuple[Pass, ...] = (fold_relu, choose_recipes)
"""Passes on every imported graph. A mapping file refers to the graph that they return."""

DECISION: tuple[Pass, ...] = (
    choose_branches,
    fuse_parallel_branches,
    choose_units,
    use_vector_unit,
    when_streaming(fold_space_to_depth),
    when_streaming(turn_products),
    when_streaming(lay_out_tokens),
    when_streaming(sink_transposes),
    when_streaming(lay_out_free_tensors),
    when_streaming(lay_out_matmuls),
    when_streaming(split_rows),
    when_streaming(turn_columns),
    when_streaming(lift_to_2d),
    choose_fusion,
    fuse_horizontally,
    when_streaming(compose_gathers),
    map,
)
"""Rewrites, the choices that some of them need, and the decision about the layers of the graph that is left."""

COMPLETION: tuple[Pass, ...] = (spatial.refine, spatial.choose_order)
"""Passes that complete the decision: what they decide depends on the computes, so they lower the graph, too."""

LOWERING: tuple[Pass, ...] = (
    spatial.partition,
    spatial.place_cores,
    spatial.schedule,
    pim.map_global_memory,
    pim.lower,
    pim.reuse_operands,
    pim.allocate,
    codegen.generate,
)
"""Passes after the decision, which decide no more where and when something is computed."""

_PARTITIONED: Pass = spatial.place_cores
"""The pass after which the checks of the results so far are started, in parallel with the passes that follow.

The partition takes longest to check, and its check needs the dataflow tables that this pass builds.
"""

INVARIANTS: Mapping[type, Pass] = {
    Graph: verify_graph,
    Partition: spatial.verify_partition,
    PlacedGraph: spatial.verify_placed,
    Schedule: spatial.verify_schedule,
    PimProgram: pim.verify_pim,
    InstructionStreams: codegen.verify_streams,
}
"""Verifiers of values, by type; a verifier raises `VerifyError` for a wrong value.

The first parameter is the value; the others are found by type, as for a pass. The verifiers are in a table instead of
methods because they import the classes. Values of other types have none: an error in them shows in later values.
"""


class PassValues:
    """The values of a compilation, one per type: the inputs, replaced by the latest results of passes."""

    def __init__(self, *given: object) -> None:
        self._by_type: dict[type, Any] = {type(value): value for value in given}

    def __getitem__(self, kind: type[T]) -> T:
        return self._by_type[kind]

    def holds(self, value: object) -> bool:
        """True if this very object is held: a pass that changes nothing returns its argument."""
        return self._by_type.get(type(value)) is value

    def arguments_of(self, step: Pass) -> list[Any]:
        """Returns the arguments of a pass, in the order of its parameters."""
        return [self._by_type[kind] for kind in parameter_types(step)]

    def replace_value(self, value: object) -> "PassValues":
        """Returns the values with `value` in place of the value of the same type."""
        return PassValues(*(self._by_type | {type(value): value}).values())


@cache
def parameter_types(step: Pass) -> tuple[type, ...]:
    """Returns the types of the parameters of a pass, without `self`."""
    hints = get_type_hints(step)
    return tuple(hints[name] for name in inspect.signature(step).parameters if name != "self")


@dataclass(frozen=True, slots=True)
class MappedGraph:
    """A graph with all rewrites, and the decision about it. It has every layer of the prepared graph, too.

    `label`: the name of the file that the decision is from in messages; empty for others.
    """

    graph: Graph
    decision: Decision
    label: str = ""


@dataclass(frozen=True, slots=True)
class Completed:
    """A mapped graph with a complete decision. `known`: results of passes of `LOWERING` that deciding took."""

    mapped: MappedGraph
    known: Mapping[str, Any]


def rewrite_and_map(
    graph: Graph,
    arch: Target,
    source: Strategy | StoredDecision,
    *,
    driver: Driver | None = None,
    cache: PlanCache | None = None,
) -> MappedGraph:
    """Rewrites a prepared graph and maps it, by a strategy or as a stored decision says.

    If no layer can stream on the chip, the strategy's fallback starts again with the prepared graph. Results of passes
    are verified only with a `driver`. `cache`: see `plan_layers`. Raises `CapacityError` if the chip is too small.
    """
    pace = source.pace if isinstance(source, Strategy) else "own"
    pace = pace or default_pace(graph, arch)
    mapper = MappingState(source, pace, cache or PlanCache())
    try:
        values = _run(DECISION, PassValues(graph, apply_pace(arch, pace), mapper), driver or Driver(verified=False))
    except NothingStreamsError:
        if not isinstance(source, Strategy) or source.fallback is None:
            raise
        return rewrite_and_map(graph, arch, source.fallback.at_pace(pace), driver=driver, cache=cache)
    return MappedGraph(
        values[Graph], values[MappingResult].decision, source.label if isinstance(source, StoredDecision) else ""
    )


def complete(
    mapped: MappedGraph, arch: Target, *, aim: OrderObjective = STORED_ORDER, driver: Driver | None = None
) -> Completed:
    """Decides what depends on the computes: refinement and order of work, the latter by `aim`.

    A decision that has a refinement is complete. Results of passes are not checked here, but where they are lowered.
    Raises `CapacityError` if the chip is too small.
    """
    timed = apply_pace(arch, mapped.decision.pace)
    values = _run(COMPLETION, PassValues(mapped.graph, mapped.decision, timed, aim), driver or Driver())
    refined, ordered = values[Refined], values[Ordered]
    made = {"partition": refined.partition, "place_cores": ordered.placed, "schedule": ordered.schedule}
    known = {name: result for name, result in made.items() if result is not None}
    return Completed(replace(mapped, decision=ordered.decision), known)


def run_lowering(
    mapped: MappedGraph,
    arch: Target,
    *,
    driver: Driver | None = None,
    upto: str = "",
    known: Mapping[str, Any] | None = None,
    kept: PassResults | None = None,
) -> PassValues:
    """Lowers a graph by a complete decision, up to the pass `upto`, or to the end. Returns the last value of each type.

    A pass whose result is `known` from a run for the same decision is not run again, but its result is checked and
    shown like any other. `kept` gets the result of each pass.

    Raises `CapacityError` if the chip is too small, and `UserError` if the refinement of a stored decision is not for
    these computes.
    """
    # Every pass gets these times, so that nothing in the program depends on others.
    timed = apply_pace(arch, mapped.decision.pace)
    values = PassValues(mapped.graph, mapped.decision, timed)
    try:
        return _run(LOWERING, values, driver or Driver(), upto, known or {}, kept)
    except RefinementError as e:
        label = f"{mapped.label}: " if mapped.label else ""
        raise UserError(f"{label}decision.refinement: {e}; null has it decided anew") from e


def prepare_graph(
    graph: Graph, arch: Target, requantising: RequantMethod | None = None, *, driver: Driver | None = None
) -> Graph:
    """Runs the passes that all strategies have in common on an imported graph. Returns the prepared graph."""
    return _run(PREPARATION, PassValues(graph, arch, requantising or RequantMethod()), driver or Driver())[Graph]


def _run(
    passes: tuple[Pass, ...],
    values: PassValues,
    driver: Driver,
    upto: str = "",
    known: Mapping[str, Any] = MappingProxyType({}),
    kept: PassResults | None = None,
) -> PassValues:
    for step in passes:
        stage = _returning(step, known[step.__name__]) if step.__name__ in known else step
        result = driver.run(stage, partial(verify_result, values), *values.arguments_of(step))
        values = values.replace_value(result)
        if kept is not None:
            kept[step.__name__] = result
        if step is _PARTITIONED:
            driver.start_checks()
        if step.__name__ == upto:
            break
    return values


def _returning(step: Pass, result: object) -> Pass:
    """Returns a pass of the same name, with a known result."""

    @wraps(step)
    def stage(*_: Any) -> Any:
        return result

    return stage


def verify_result(values: PassValues, result: object) -> None:
    """Raises `VerifyError` if the result of a pass breaks an invariant of its type."""
    check = INVARIANTS.get(type(result))
    if check is not None and not values.holds(result):
        check(result, *(values[kind] for kind in parameter_types(check) if kind is not type(result)))
