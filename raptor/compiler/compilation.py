"""The compiler: from an ONNX model, a chip and options to the contents of an output directory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor import frontend, pim
from raptor.codegen.machine_backend import InstructionSet, MachineBackend, ProgramParts, find_backend, refuse_options
from raptor.common.errors import CapacityError, DeadLinkError, UnsupportedError, UnsupportedNode, UserError
from raptor.common.files import file_access
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import OneOf
from raptor.common.options.option_values import DEFAULT_STRATEGY, SEARCHED_STAGES
from raptor.compiler import pipeline
from raptor.compiler.mapping_search import search_mapping
from raptor.compiler.pass_driver import Driver, PassResults
from raptor.compiler.stage_search import overlap_samples
from raptor.frontend import LoadedModel
from raptor.frontend.loading import GrowingModel
from raptor.frontend.state_pairs import find_states
from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.residency import Residency
from raptor.mapping.decide import StoredDecision
from raptor.mapping.decision import CorePlacement, LineFlow
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs, changed_knobs, parse_knobs
from raptor.mapping.mapping_file import make_mapping_file, read_mapping
from raptor.mapping.scheduling.order_selection import BALANCED_OBJECTIVE, STORED_ORDER, OrderObjective
from raptor.mapping.strategies import STRATEGIES, Strategy, rows_strategy
from raptor.options import CompileOptions, NumberOptions, ResidencyOptions, RoundOptions
from raptor.output import file_contents, files
from raptor.output.compile_report import make_report
from raptor.output.writer import GrowingFiles, ProgramArtifacts
from raptor.target.arch import Target, check_network_size, load_chip
from raptor.target.avoid_defects import describe_loss, list_clear_cores, list_usable_cores
from raptor.target.device_file import DeviceFile, load_device
from raptor.transforms.choose_recipes import RequantMethod, flip_notes, trim_notes

if TYPE_CHECKING:
    import onnx

DEFAULT_BITS = 8
"""Default of the option `bits` (width of elements), which has no effect on integer models."""

MOST_KEPT_INSTRUCTIONS = 8_000_000
"""Most instructions for which a command does not free the results of passes: freeing takes 0.2 s per million.

The results of a larger program are verified and freed at once. With BERT-base (14.9 million instructions), they would
add 0.4 GiB to the peak memory of the last verification.
"""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Options of a compilation with the objects that they name: the chip, the knobs of `rows`, the device of rounds.

    `device`: None without rounds. `recorded`: the options as the manifest records them. `backend`: the machine.
    """

    options: CompileOptions
    arch: Target
    knobs: TuningKnobs
    device: DeviceFile | None
    recorded: Mapping[str, Any]
    backend: MachineBackend[Any]

    @property
    def requantising(self) -> RequantMethod:
        """The requantisation method for integers; exact by default."""
        return RequantMethod(self.options.numbers.requant or "exact", self.options.numbers.trimmable)

    @property
    def refusal_function(self) -> Callable[[Node], str | None]:
        """Function from a node to the reason why the chip may not compute it; None if it may."""
        return find_refusal(self.options.numbers, self.backend)

    def with_options(self, **parts: Any) -> "CompileRequest":
        """Returns the request with other option records; the manifest entries stay the same."""
        return replace(self, options=replace(self.options, **parts))

    def with_records(self, **more: Any) -> "CompileRequest":
        """Returns the request with more entries in the manifest."""
        return replace(self, recorded={**self.recorded, **more})


def make_request(options: CompileOptions) -> CompileRequest:
    """Loads the files that the options name. Raises `UserError` for a wrong chip, and for options without effect."""
    mapping, knobs = options.mapping, parse_knobs(options.mapping.knobs)
    backend = find_backend(options.numbers.backend)
    refuse_options(backend, options)
    if knobs != DEFAULT_KNOBS and (mapping.optimize is not None or mapping.mapping != DEFAULT_STRATEGY):
        raise UserError(f"{spell_option('knobs')}: only with the mapping rows, whose numbers they are")
    chip = load_chip(options.chip)
    recorded = {
        "xbar": [chip.xbar_rows, chip.xbar_cols],
        "cores": chip.cores_per_chip,
        "xbars_per_core": chip.core.xbar_count,
        "cell_bits": chip.cell_bits,
        "bits": options.chip.bits,
        "shapes": {name: list(shape) for name, shape in options.inputs.shapes.items()},
        "dims": options.inputs.dims,
        "mapping": mapping.mapping,
        "isa": "base" if options.numbers.base_isa else "extended",
        **({"backend": backend.name} if backend.name != files.PIMSIM else {}),
        **({"states": dict(options.residency.states)} if options.residency.states else {}),
        **({"capacity": options.residency.capacity} if options.residency.capacity else {}),
        **({"resident_constants": True} if options.residency.resident_constants else {}),
        **({"chips": chip.chips} if chip.chips > 1 else {}),
        **({"overlap": mapping.overlap} if (mapping.overlap or 1) > 1 else {}),
        **({"chip": chip.defects.file.name} if chip.defects else {}),
        **({"optimize": mapping.objective} if mapping.objective else {}),
        **({"effort": mapping.effort} if mapping.effort else {}),
        **({"fields": options.chip.fields} if options.chip.fields else {}),
        **({"knobs": changed_knobs(knobs)} if knobs != DEFAULT_KNOBS else {}),
    }
    return CompileRequest(options, chip, knobs, _device(options.rounds), recorded, backend)


def _device(options: RoundOptions) -> DeviceFile | None:
    """Loads the device file of rounds; None without rounds. Raises `UserError` if it has no write time."""
    found = load_device(options.device) if options.rounds else None
    if found is not None and not found.write.ns:
        raise UserError(
            f"{spell_option('device', options.device)}: it does not know what a write takes, which rounds need"
        )
    return found


@dataclass(frozen=True, slots=True)
class DecisionSource:
    """The source of the decision: a strategy, a stored mapping, or the best candidate of a search.

    `notes`: notes about a mapping file that is replayed. `aim`: objective for the order of work (`schedule`). `known`:
    results of passes for this decision, if a search has them.
    """

    source: Strategy | StoredDecision
    notes: tuple[str, ...] = ()
    aim: OrderObjective = STORED_ORDER
    known: PassResults | None = None


def choose_source(graph: Graph, request: CompileRequest, driver: Driver) -> DecisionSource:
    """Chooses the source of the decision about a prepared graph, by the options.

    Raises `UserError` for a stored mapping that is not for this model and chip, and `CapacityError` if a search finds
    no mapping that fits the chip.
    """
    arch, options = request.arch, request.options.mapping
    if options.objective is not None:
        in_two = driver.beside is not None
        wanted = request.backend, options.objective, options.effort
        best = driver.timed("search", search_mapping, graph, arch, *wanted, in_two=in_two)
        return DecisionSource(StoredDecision(best.decision, trials=best.trials), known=best.known)
    if request.knobs != DEFAULT_KNOBS:
        return DecisionSource(rows_strategy(request.knobs).at_pace(None), aim=BALANCED_OBJECTIVE)
    if options.mapping in STRATEGIES:
        return DecisionSource(STRATEGIES[options.mapping], aim=BALANCED_OBJECTIVE)
    label = spell_option("mapping", Path(options.mapping))
    decision, notes = read_mapping(Path(options.mapping), label, graph, arch)
    staged = isinstance(decision.flow, LineFlow) and decision.flow.stages is not None
    if staged and (refusal := _find_judge_refusal(graph, request.options)):
        raise UserError(f"{label}: decision.flow.stages: {refusal}")
    return DecisionSource(StoredDecision(decision, label), notes=notes)


PASS_OPTION = OneOf("stop_after", tuple(step.__name__ for step in (frontend.load, *pipeline.PASSES)))


def compile_model(source: "str | Path | onnx.ModelProto", request: CompileRequest, driver: Driver) -> ProgramArtifacts:
    """Runs every pass. Returns the contents of the output directory."""
    check_driver(driver, request)
    options = request.options
    loaded = driver.run(frontend.load, _verify_model, source, options.inputs, options.residency)
    return compile_loaded(loaded, request, driver)


def check_driver(driver: Driver, request: CompileRequest) -> None:
    """Raises `UserError` for a pass that does not exist, and for a chip too large for its network table.

    Also for a machine that is never asked, because the compilation stops before.
    """
    if driver.stop_after is not None:
        PASS_OPTION.parse(driver.stop_after)
    backend, last = request.backend, PASS_OPTION.choices[-1]
    if driver.stop_after not in (None, last) and backend.name != files.PIMSIM:
        stopped = spell_option("stop_after", driver.stop_after)
        raise UserError(f"{spell_option('backend', backend.name)}: not with {stopped}, which ends before {last}")
    for name, user in driver.passes.items():
        if name not in PASS_OPTION.choices:
            raise UserError(f"{user.label}: expected one of: {', '.join(PASS_OPTION.choices)}")
        if driver.stop_after and PASS_OPTION.choices.index(driver.stop_after) < PASS_OPTION.choices.index(name):
            raise UserError(f"{user.label}: not with {spell_option('stop_after', driver.stop_after)}, before {name}")
    check_network_size(request.arch)


def compile_loaded(model: LoadedModel, request: CompileRequest, driver: Driver) -> ProgramArtifacts:
    """Runs every pass after `load`. Returns the contents of the output directory."""
    arch, options = request.arch, request.options
    if options.numbers.base_isa:
        _refuse_nodes(model.graph, request.refusal_function)
    _check_numbers(model.graph, arch, options.numbers)
    graph = set_residency(model.graph, options.residency, model.decoder)
    most_stages = choose_most_stages(graph, options)
    graph = pipeline.prepare_graph(graph, arch, request.requantising, driver=driver)
    try:
        chosen, completed = _decide(graph, request, driver)
    except DeadLinkError:
        if options.mapping.objective is None and options.mapping.mapping not in STRATEGIES:
            raise  # a stored mapping
        chosen, completed = _decide_on_clear_cores(graph, request, driver)
    mapped = completed.mapped
    if most_stages > 1:
        goal = options.mapping.objective or "throughput"
        others: tuple[pipeline.Completed, ...] = ()
        if options.mapping.objective == "throughput":
            others = driver.timed("map", _map_for_stages, graph, arch, most_stages)
        given = completed, arch, request.backend, most_stages, goal, others
        completed = driver.timed("overlap", overlap_samples, *given)
    known = None if driver.passes else completed.known  # else a pass that follows one of the user's
    lowered = pipeline.run_lowering(completed.mapped, arch, driver=driver, known=known)
    code = pipeline.generate_code(lowered, request.backend, driver=driver, known=known)
    driver.start_checks()
    program, facts = lowered.program, request.backend.facts(code)
    if sum(map(len, facts.kinds.values())) <= MOST_KEPT_INSTRUCTIONS:
        driver.keep((completed, lowered, code))
    else:
        driver.finish()  # else the checks that run beside hold what they look at
    decision = completed.mapped.decision
    mapping = make_mapping_file(decision, graph, arch)
    trials = chosen.source.trials if isinstance(chosen.source, StoredDecision) else ()
    if options.mapping.emit_mapping is not None:
        file_access.write_atomic(spell_option("emit_mapping"), options.mapping.emit_mapping, mapping.to_json())
    tiles, memory = lowered.partition.graph, lowered.memory
    if options.mapping.emit_ops is not None:
        assert isinstance(request.backend, InstructionSet), "refused for other machines"
        flow = request.backend.operator_flow(mapped.graph, program, code, arch)
        file_access.write_atomic(
            spell_option("emit_ops"), options.mapping.emit_ops, "".join(f"{line}\n" for line in flow).encode()
        )
    warnings = _warnings(model, graph, program, request, chosen.notes, driver)
    parts = ProgramParts(program, tiles, memory, arch, options.numbers.trimmable)
    return ProgramArtifacts(
        name=model.name,
        numbers=tiles.numbers,
        integers=file_contents.make_integer_proofs(graph, request.requantising.method),
        options={**request.recorded, files.CONSTANT_INPUTS: {n: v.tolist() for n, v in model.constants.items()}},
        memory=file_contents.make_memory_map(tiles, memory, program, arch),
        mapping=mapping,
        report=make_report(mapped.graph, tiles, decision, program, facts, arch, warnings, trials),
        machine=request.backend.files(code, parts),
        backend=request.backend.name,
        constants=memory.constant_values,
        onnx_bytes=model.onnx_bytes,
        decoder=_growing_files(model),
    )


def _decide(graph: Graph, request: CompileRequest, driver: Driver) -> tuple[DecisionSource, pipeline.Completed]:
    """Maps a prepared graph and completes the decision. Raises `DeadLinkError` if a message needs a dead link."""
    chosen = choose_source(graph, request, driver)
    mapped = pipeline.rewrite_and_map(graph, request.arch, chosen.source, driver=driver)
    completed = pipeline.complete(mapped, request.arch, aim=chosen.aim, driver=driver)
    return chosen, replace(completed, known=chosen.known or completed.known)


def _decide_on_clear_cores(
    graph: Graph, request: CompileRequest, driver: Driver
) -> tuple[DecisionSource, pipeline.Completed]:
    """Decides as `_decide` on cores between any two of which no dead link is. Raises `CapacityError` if they are few.

    The decision is then one for all usable cores, some of which are idle.
    """
    usable, clear = list_usable_cores(request.arch), list_clear_cores(request.arch)
    chosen, completed = _decide(graph, replace(request, arch=request.arch.with_places(clear)), driver)
    decision = completed.mapped.decision
    assert decision.placement is not None, "the decision is complete"
    used = [clear[place] for place in decision.placement.places or range(len(clear))]
    rest = [core for core in usable if core not in set(clear)]
    places = tuple(usable.index(core) for core in (*used, *rest))
    decision = replace(decision, placement=CorePlacement(places))
    return chosen, replace(completed, mapped=replace(completed.mapped, decision=decision))


def _map_for_stages(graph: Graph, arch: Target, most: int) -> tuple[pipeline.Completed, ...]:
    """Returns the graph mapped by default, and by the estimated interval with at most `most` stages, where both fit.

    The first has a lower latency, which needs fewer stages. The second has less work on its busiest core, for which it
    may have a longer interval without stages than the mapping that a search finds.
    """
    staged = rows_strategy(replace(DEFAULT_KNOBS, latency=0.0, stages=most))
    interval = replace(BALANCED_OBJECTIVE, criterion="throughput")
    found: list[pipeline.Completed] = []
    for strategy, aim in ((STRATEGIES[DEFAULT_STRATEGY], BALANCED_OBJECTIVE), (staged, interval)):
        try:
            mapped = pipeline.rewrite_and_map(graph, arch, strategy)
            found.append(pipeline.complete(mapped, arch, aim=aim, driver=Driver(verified=False)))
        except CapacityError:
            continue
    return tuple(found)


def _warnings(
    model: LoadedModel,
    graph: Graph,
    program: pim.PimProgram,
    request: CompileRequest,
    notes: tuple[str, ...],
    driver: Driver,
) -> tuple[str, ...]:
    """Returns what the report warns of. `notes`: of the source of the decision."""
    arch, options = request.arch, request.options
    warnings = (
        *model.notes,
        *arch.notes,
        *([describe_loss(arch)] if arch.defects else []),
        *notes,
        *flip_notes(graph),
        *_trim_notes(graph, program, options.numbers),
        *pim.memory_warnings(program, arch),
        *_delay_notes(program),
    )
    if driver.passes:
        warnings += tuple(f"{user.label} has changed the result of {name}" for name, user in driver.passes.items())
    return warnings


def choose_most_stages(graph: Graph, options: CompileOptions) -> int:
    """Returns the largest number of samples that the chip may work on at once.

    If no option says how many, it is 1 where samples cannot overlap. Raises `UserError` if they shall overlap although
    the next one needs the one before, or a judge inner values.
    """
    given, objective = options.mapping.overlap, options.mapping.objective
    most, shown = given or (SEARCHED_STAGES if objective == "throughput" else 1), spell_option("overlap", given)
    if most == 1:
        return 1
    if objective == "latency":
        raise UserError(f"{shown}: not with {spell_option('optimize', 'latency')}: each stage makes the latency longer")
    refusals = (_find_state_refusal(graph), _find_judge_refusal(graph, options))
    refusal = next(filter(None, refusals), None)
    if refusal and given:
        raise UserError(f"{shown}: {refusal}")
    return 1 if refusal else most


def _find_state_refusal(graph: Graph) -> str | None:
    return f"not with {spell_option('states')}, whose values the next sample needs" if graph.residency.states else None


def _find_judge_refusal(graph: Graph, options: CompileOptions) -> str | None:
    """Returns why samples cannot overlap if the program is judged by its intermediate tensors, else None."""
    if graph.arithmetic == "mixed" or options.numbers.requant == "short":
        return "not for sections of floats or short multipliers, which are judged node by node"
    return None


def _growing_files(model: LoadedModel) -> GrowingFiles | None:
    """Returns the files about a model whose states grow; None for any other model."""
    found = model.decoder
    return None if found is None else GrowingFiles(file_contents.make_decoder(found.steps), found.onnx_bytes)


def set_residency(graph: Graph, options: ResidencyOptions, decoder: GrowingModel | None = None) -> Graph:
    """Returns an imported graph that knows what stays on the chip. Raises `UserError` as `find_states` does.

    `decoder`: the model whose step the graph is, if its states grow.
    """
    growing = {state.input: state.output for state in decoder.steps.states} if decoder else {}
    given = decoder.steps.split_pairs(options.states) if decoder else options.states
    states = find_states(graph, given, growing) if given else ()
    return replace(graph, residency=Residency(options.resident_constants, states))


def _check_numbers(graph: Graph, arch: Target, options: NumberOptions) -> None:
    """Raises `UserError` for an option without effect on a float graph, or on an integer graph."""
    requant = options.requant
    if graph.arithmetic == "float":
        if requant is not None:
            raise UserError(
                f"{spell_option('requant', requant)}: the model has no integers, which alone are requantised"
            )
        if options.trimmable:
            raise UserError(f"{spell_option('trimmable', True)}: the model has no integers; quantise it first")
        return
    if options.trimmable and requant == "instruction":
        raise UserError(f"{spell_option('trimmable', True)}: not with {spell_option('requant', requant)}")
    if arch.element_bits != DEFAULT_BITS:
        raise UserError(
            f"{spell_option('bits', arch.element_bits)}: only for models of floats; the types of this model say the "
            "widths of its integers"
        )
    _check_weights(graph, arch)
    if options.base_isa and requant == "instruction":
        raise UserError(
            f"{spell_option('requant', requant)}: needs the extended instruction vrequant, which "
            f"{spell_option('base_isa', True)} "
            "excludes"
        )


def _check_weights(graph: Graph, arch: Target) -> None:
    """Raises `UserError` for weights that need more cells than a crossbar has columns."""
    for node in graph.nodes:
        if isinstance(node.operator, Filter) and arch.weight_columns(node.operator.weight_bits) < 1:
            bits = node.operator.weight_bits
            cells = -(-bits // arch.cell_bits)
            raise UserError(
                f"{node.name}: a weight of {bits} bits takes {cells} cells of {arch.cell_bits} bits, but a crossbar "
                f"has only {arch.xbar_cols} columns; try {spell_option('xbar', (arch.xbar_rows, cells))}"
            )


def _delay_notes(program: pim.PimProgram) -> Iterator[str]:
    """Yields a warning if the samples of a program overlap: whoever reads its outputs must know their delays."""
    late = {name: passes for name, passes in program.delays.items() if passes}
    if late:
        shown = ", ".join(f"{name} by {passes}" for name, passes in late.items())
        yield (
            f"samples overlap: outputs come passes after their sample began ({shown}; {files.RESIDENT}); "
            f"{spell_option('overlap', 1)} keeps samples apart"
        )


def _trim_notes(graph: Graph, program: pim.PimProgram, options: NumberOptions) -> Iterator[str]:
    """Yields a warning for layers of a trimmable program that have no trim: all, if no sums can be watched."""
    if options.trimmable and not program.traces:
        yield (
            f"{spell_option('trimmable', True)}: no layer can be trimmed, because samples overlap, so that the sums of "
            f"one are never there together; {spell_option('overlap', 1)} keeps samples apart"
        )
    elif options.trimmable:
        yield from trim_notes(graph)


def _verify_model(model: LoadedModel) -> None:
    model.graph.verify()


def find_refusal(options: NumberOptions, backend: MachineBackend[Any]) -> Callable[[Node], str | None]:
    """Returns a function from a node to the reason why the chip may not compute it, such as `base_isa`; None if it may.

    `backend`: the machine, an `InstructionSet` if `base_isa` is given.
    """
    if not options.base_isa:
        return lambda _: None
    assert isinstance(backend, InstructionSet), "others refuse the option"
    extension_of = backend.find_extension

    def refuse(node: Node) -> str | None:
        found = extension_of(node.operator)
        return found and f"needs the extended instruction {found}, which {spell_option('base_isa', True)} excludes"

    return refuse


def _refuse_nodes(graph: Graph, refusal: Callable[[Node], str | None]) -> None:
    """Raises `UnsupportedError` with all nodes that the chip may not compute."""
    nodes = {n.name: (n.op_type, reason) for n in graph.nodes if (reason := refusal(n))}
    if nodes:
        raise UnsupportedError([UnsupportedNode(name, *found) for name, found in nodes.items()])
