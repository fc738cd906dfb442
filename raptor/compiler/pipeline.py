"""The pipeline: passes from the imported graph to the code of a machine.

A pass is a plain function from values to a value, and is named after its function. Each call here says what a pass
gets, and which verifier checks its result; `PASSES` lists the names.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from raptor import pim, spatial
from raptor.codegen.machine_backend import InstructionSet, MachineBackend, check_supported, find_backend
from raptor.common.errors import CapacityError, UserError
from raptor.compiler.pass_driver import Driver, PassResults, returning
from raptor.graph.ir import Graph
from raptor.mapping.decide import (
    MappingState,
    StoredDecision,
    choose_branches,
    choose_fusion,
    choose_turning,
    choose_units,
    map,
)
from raptor.mapping.decision import Decision
from raptor.mapping.evaluated_decisions import ComparedDecisions
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import apply_pace, default_pace
from raptor.mapping.refinement import RefinementError
from raptor.mapping.row_mapping import NothingStreamsError
from raptor.mapping.scheduling.order_selection import STORED_ORDER, OrderObjective
from raptor.mapping.strategies import Strategy
from raptor.output.files import PIMSIM
from raptor.pim import GlobalMemory, PimProgram
from raptor.spatial import DecisionProgress, Partition, Schedule
from raptor.target.arch import Target
from raptor.transforms.channels.drop_dead_channels import drop_dead_channels, drop_dead_features
from raptor.transforms.channels.order_channels import order_channels
from raptor.transforms.channels.select_channels import select_channels, verify_channels
from raptor.transforms.choose_recipes import RequantMethod, choose_recipes, verify_graph
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fold_gains import fold_gains
from raptor.transforms.fold_relu import fold_relu
from raptor.transforms.fold_space_to_depth import fold_space_to_depth
from raptor.transforms.fuse_horizontally import fuse_horizontally
from raptor.transforms.fuse_parallel_branches import fuse_parallel_branches
from raptor.transforms.lay_out_free_tensors import lay_out_free_tensors
from raptor.transforms.lay_out_matmuls import lay_out_matmuls
from raptor.transforms.lift_to_2d import lift_to_2d
from raptor.transforms.reduce_in_place import reduce_in_place
from raptor.transforms.rewrite_choices import RewriteChoice
from raptor.transforms.split_rows import split_rows
from raptor.transforms.tokens.join_steps import join_steps
from raptor.transforms.tokens.lay_out_tokens import lay_out_tokens
from raptor.transforms.tokens.multiply_moved import multiply_moved
from raptor.transforms.tokens.narrow_sums import narrow_sums
from raptor.transforms.tokens.sink_transposes import sink_transposes
from raptor.transforms.turn_columns import turn_columns
from raptor.transforms.turn_images import turn_images
from raptor.transforms.turn_products import turn_products
from raptor.transforms.use_vector_unit import use_vector_unit

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

LAYOUT_REWRITES: tuple[Callable[[Graph], Graph], ...] = (
    fold_space_to_depth,
    turn_products,
    lay_out_tokens,
    sink_transposes,
    lay_out_free_tensors,
    lay_out_matmuls,
    split_rows,
    turn_columns,
    lift_to_2d,
    reduce_in_place,
)
"""Rewrites that lay tensors out for streaming; without streaming, they leave the graph as it is."""

PASSES: tuple[Callable[..., object], ...] = (
    *(fold_gains, drop_dead_channels, order_channels, fold_relu, choose_recipes),
    *(choose_branches, fuse_parallel_branches, join_steps, choose_units, use_vector_unit),
    *(*LAYOUT_REWRITES, drop_dead_features, multiply_moved, narrow_sums),
    *(choose_turning, turn_images, choose_fusion, fuse_horizontally, compose_gathers, map),
    *(spatial.refine, spatial.choose_placement, spatial.choose_order),
    *(spatial.partition, spatial.place_cores, spatial.schedule),
    *(
        pim.map_global_memory,
        pim.lower,
        pim.keep_constants,
        pim.reuse_operands,
        pim.allocate,
        MachineBackend[Any].generate,
    ),
)
"""All passes after the import, in the order in which a compilation runs them. The last is the one of the machine."""


@dataclass(frozen=True, slots=True)
class MappedGraph:
    """A graph with all rewrites, and the decision about it. It has every layer of the prepared graph, too.

    `label`: the name of the file that the decision is from in messages; empty for others. `compared`: decisions of
    which the one whose computes are best replaces `decision`.
    """

    graph: Graph
    decision: Decision
    label: str = ""
    compared: ComparedDecisions | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A mapped graph with a complete decision. `known`: results of passes of the lowering that deciding took."""

    mapped: MappedGraph
    known: PassResults


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """The result of a lowering: the program, and the values on the way to it that outputs and reports read.

    `target`: the chip with the times that the decision was made for.
    """

    partition: Partition
    schedule: Schedule
    memory: GlobalMemory
    program: PimProgram
    target: Target


def prepare_graph(
    graph: Graph, arch: Target, requantising: RequantMethod | None = None, *, driver: Driver | None = None
) -> Graph:
    """Runs the passes that all strategies have in common on an imported graph.

    Returns the prepared graph, to which a mapping file refers.
    """
    driver = driver or Driver()
    run, graph = driver.run, simplify_channels(graph, arch, driver=driver)
    graph = run(fold_relu, verify_graph, graph, arch)
    return run(choose_recipes, verify_graph, graph, requantising or RequantMethod())


def simplify_channels(graph: Graph, arch: Target, *, driver: Driver | None = None) -> Graph:
    """Returns the graph without dead channels, and with the others in the order that leaves most matrices of zeros."""
    run = (driver or Driver(verified=False)).run
    graph = run(fold_gains, verify_graph, graph)
    graph = run(drop_dead_channels, verify_channels, graph, arch).graph
    return run(order_channels, verify_channels, graph, arch).graph


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
        return _map(graph, apply_pace(arch, pace), mapper, driver or Driver(verified=False))
    except NothingStreamsError:
        if not isinstance(source, Strategy) or source.fallback is None:
            raise
        return rewrite_and_map(graph, arch, source.fallback.at_pace(pace), driver=driver, cache=cache)


def _map(graph: Graph, timed: Target, mapper: MappingState, driver: Driver) -> MappedGraph:
    """Runs the rewrites, the choices that some of them need, and `map` on the graph that they leave."""
    run = driver.run
    rewrites = run(choose_branches, None, graph, mapper)
    graph = run(fuse_parallel_branches, verify_graph, graph, rewrites)
    graph = run(join_steps, verify_graph, graph, rewrites)
    rewrites = run(choose_units, None, graph, timed, mapper, rewrites)
    graph = run(use_vector_unit, verify_graph, graph, rewrites)
    for rewrite in LAYOUT_REWRITES:
        graph = run(_if_streaming(rewrite, graph, rewrites), verify_graph, graph)
    dropped = drop_dead_features if rewrites.streaming else returning(drop_dead_features, select_channels(graph, {}))
    graph = run(dropped, verify_channels, graph, timed).graph
    for rewrite in (multiply_moved, narrow_sums):
        graph = run(rewrite if rewrites.streaming else returning(rewrite, graph), verify_graph, graph, timed)
    rewrites = run(choose_turning, None, graph, timed, mapper, rewrites)
    graph = run(turn_images, verify_graph, graph, rewrites)
    rewrites = run(choose_fusion, None, graph, timed, mapper, rewrites)
    graph = run(fuse_horizontally, verify_graph, graph, rewrites)
    graph = run(_if_streaming(compose_gathers, graph, rewrites), verify_graph, graph)
    found = run(map, None, graph, timed, mapper, rewrites)
    label = mapper.source.label if isinstance(mapper.source, StoredDecision) else ""
    return MappedGraph(graph, found.decision, label, found.compared)


def _if_streaming(rewrite: Callable[[Graph], Graph], graph: Graph, rewrites: RewriteChoice) -> Callable[[Graph], Graph]:
    """Returns the rewrite; if tensors do not stream, a pass of its name that leaves `graph` as it is."""
    return rewrite if rewrites.streaming else returning(rewrite, graph)


def complete(
    mapped: MappedGraph, arch: Target, *, aim: OrderObjective = STORED_ORDER, driver: Driver | None = None
) -> Completed:
    """Decides what depends on the computes: refinement, placement, and order of work, the latter by `aim`.

    Of several decisions (`MappedGraph.compared`), the one with the best order is kept. What a decision has stays.
    Results of passes are not checked here, but where they are lowered. Raises `CapacityError` if the chip is too small,
    and `UserError` as `run_lowering` does.
    """
    driver, known = driver or Driver(), PassResults()
    if mapped.compared is not None:
        mapped, known = driver.timed("compare", _best_decision, mapped, mapped.compared, arch, aim)
    done = _complete(mapped, arch, aim, driver, known)
    known = PassResults()
    known.put(spatial.partition, done.partition)
    known.put(spatial.place_cores, done.placed)
    known.put(spatial.schedule, done.schedule)
    return Completed(replace(mapped, decision=done.decision), known)


def _best_decision(
    mapped: MappedGraph, compared: ComparedDecisions, arch: Target, aim: OrderObjective
) -> tuple[MappedGraph, PassResults]:
    """Returns the graph with the best of several decisions by `aim`, and the results of the passes that complete it.

    A decision for which the chip is too small loses: dead links may cut its messages at all places.
    """
    quiet = Driver(verified=False)
    alone, reference_ns = replace(mapped, compared=None), compared.reference_ns
    best, best_ns, best_known = alone, None, PassResults()
    for decision in compared.decisions:
        known, tried = PassResults(), replace(alone, decision=decision)
        try:
            times_ns = _complete(tried, arch, aim, quiet, kept=known).times_ns
        except CapacityError:
            continue
        reference_ns = reference_ns or times_ns
        if best_ns is None or (times_ns is not None and aim.is_better(times_ns, best_ns, reference_ns)):
            best, best_ns, best_known = tried, times_ns, known
    return best, best_known


def _complete(
    mapped: MappedGraph,
    arch: Target,
    aim: OrderObjective,
    driver: Driver,
    known: PassResults | None = None,
    kept: PassResults | None = None,
) -> DecisionProgress:
    """Completes the decision of a mapped graph. `known`, `kept`: as for `run_lowering`."""
    run, known, kept = driver.run, known or PassResults(), PassResults() if kept is None else kept
    timed = apply_pace(arch, mapped.decision.pace)
    done = run(known.replayed(spatial.refine), None, mapped.graph, mapped.decision, timed)
    kept.put(spatial.refine, done)
    with _naming_file(mapped.label):
        done = run(known.replayed(spatial.choose_placement), None, mapped.graph, done, timed)
    kept.put(spatial.choose_placement, done)
    done = run(known.replayed(spatial.choose_order), None, done, timed, aim)
    kept.put(spatial.choose_order, done)
    return done


@contextmanager
def _naming_file(label: str) -> Generator[None]:
    """Adds the file of the decision to a `RefinementError`, and what would help."""
    try:
        yield
    except RefinementError as e:
        raise UserError(f"{f'{label}: ' if label else ''}decision.refinement: {e}; null has it decided anew") from e


def run_lowering(
    mapped: MappedGraph,
    arch: Target,
    *,
    driver: Driver | None = None,
    known: PassResults | None = None,
    kept: PassResults | None = None,
) -> LoweredProgram:
    """Lowers a graph by a complete decision, which decides no more where and when something is computed.

    A pass whose result is `known` from a run for the same decision is not run again, but its result is checked and
    shown like any other. `kept` gets the result of each pass.

    Raises `CapacityError` if the chip is too small, and `UserError` if the refinement of a stored decision is not for
    these computes.
    """
    driver, known = driver or Driver(), known or PassResults()

    def run(step: Callable[P, R], verify: Callable[[R], object] | None, *args: P.args, **kwargs: P.kwargs) -> R:
        result = driver.run(known.replayed(step), verify, *args, **kwargs)
        if kept is not None:
            kept.put(step, result)
        return result

    # Every pass gets these times, so that nothing in the program depends on others.
    timed, decision = apply_pace(arch, mapped.decision.pace), mapped.decision
    with _naming_file(mapped.label):
        partition = run(spatial.partition, partial(spatial.verify_partition, arch=timed), mapped.graph, decision, timed)
    check_placed = partial(spatial.verify_placed, partition=partition, arch=timed)
    placed = run(spatial.place_cores, check_placed, partition, decision, timed)
    driver.start_checks()  # the partition takes longest to check
    schedule = run(spatial.schedule, partial(spatial.verify_schedule, placed=placed), placed, decision, timed)
    memory = run(pim.map_global_memory, None, schedule, timed)
    check_pim = partial(_verify_pim, memory=memory, arch=timed, is_changed=bool(driver.passes))
    program = run(pim.lower, check_pim, schedule, memory, timed)
    program = run(pim.keep_constants, check_pim, program, placed.graph, memory, timed)
    program = run(pim.reuse_operands, check_pim, program)
    program = run(pim.allocate, check_pim, program, timed)
    return LoweredProgram(partition, schedule, memory, program, timed)


def generate_code(
    lowered: LoweredProgram,
    backend: MachineBackend[C],
    *,
    driver: Driver | None = None,
    known: PassResults | None = None,
    kept: PassResults | None = None,
) -> C:
    """Runs the pass of a machine, `generate`, on a lowered program. Other arguments: see `run_lowering`.

    Raises `UnsupportedError` with all nodes that the machine cannot compute.
    """
    program, target = lowered.program, lowered.target
    check_supported(backend, program, target)
    step = (known or PassResults()).replayed(backend.generate)
    check = partial(backend.verify, program=program, target=target)
    code = (driver or Driver()).run(step, check, program, target)
    if kept is not None:
        kept.put(backend.generate, code)
    return code


def _verify_pim(program: PimProgram, *, memory: GlobalMemory, arch: Target, is_changed: bool) -> None:
    """Checks a program. is_changed: whether a pass of the user may have made it, so that nothing about it is proved."""
    pim.verify_pim(program, arch)
    if is_changed:
        pim.verify_global_addresses(program, memory, arch)
        reference = find_backend(PIMSIM)  # its instructions say what an operation accesses, also for other machines
        assert isinstance(reference, InstructionSet), "pimsim-nn has instructions"
        reference.verify_forms(program, arch)
