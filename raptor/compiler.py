"""The compiler: it turns an ONNX model, a chip and a choice of mapping into the contents of an output directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raptor import codegen, frontend, pim, pipeline
from raptor.codegen import Streams, operator_flow
from raptor.common import storage
from raptor.common.arguments import OneOf
from raptor.common.errors import UnsupportedError, UnsupportedNode, UserError
from raptor.common.options import Objective, Requant
from raptor.common.spelling import option
from raptor.driver import Driver
from raptor.frontend import Model
from raptor.graph.ir import (
    EXTENDED,
    Filter,
    Graph,
    Lookup,
    Map,
    Node,
    Operator,
    Softmax,
)
from raptor.mapping.choose_recipes import Requantising, flip_notes
from raptor.mapping.decision import Decision
from raptor.mapping.file import mapping_file, read_mapping
from raptor.mapping.knobs import DEFAULT, Knobs
from raptor.mapping.strategies import STRATEGIES, rows
from raptor.mapping.trial import Trial
from raptor.output import contents, files
from raptor.output.compile_report import make_report
from raptor.output.writer import Artifacts
from raptor.pim import GlobalMemory, PimProgram
from raptor.search.mappings import search
from raptor.spatial import Partition, Schedule
from raptor.spatial.orders import BALANCED, STORED, Aim
from raptor.target.arch import Target, check_network_size

if TYPE_CHECKING:
    import onnx

INTEGER_BITS = 8
"""The default of the option for the width of elements, which does not act on models of integers."""

MOST_KEPT = 8_000_000
"""Instructions up to which a command keeps what the passes have made: freeing it takes a fifth of a second a million.

A larger program is checked at once, and freed. With BERT-base (14.9 million), it would add 0.4 GiB to what the last
check of the streams needs.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way in which the decision is made.

    `strategy`: a name of `STRATEGIES`, or the path of a stored mapping. With `optimize`, a search tries `effort`
    mappings instead; None for the default number (`search`). `emit`: path to which the decision is written.
    `emit_ops`: path to which the flow of operators is written. `knobs`: numbers of the strategy `rows`. `in_two`: the
    search may use a copy of the process.
    """

    strategy: str
    optimize: Objective | None = None
    effort: int | None = None
    emit: Path | None = None
    emit_ops: Path | None = None
    knobs: Knobs = DEFAULT
    in_two: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, with the `trials` of a search and `notes` about a file that was replayed.

    `aim`: how the order of work is still to be chosen, once all work has a place. `known`: results of passes for this
    decision, if a search has them.
    """

    decision: Decision
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    aim: Aim = STORED
    known: pipeline.Results = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        tried = (f"tried {t.name}: {t.fault or f'{t.figure:.10g}'}\n" for t in self.trials)
        return f"{self.decision}{''.join(tried)}"


def map(graph: Graph, arch: Target, choice: Choice) -> Decided:
    """Decides how each layer is computed, and on which cores.

    Raises `UserError` for a stored mapping that is not for this model and chip, and `CapacityError` if the chip is too
    small.
    """
    if choice.optimize is not None:
        found = search(graph, arch, choice.optimize, choice.effort, in_two=choice.in_two)
        return Decided(found.decision, found.trials, known=found.known)
    if choice.knobs != DEFAULT:
        return Decided(rows(graph, arch, choice.knobs), aim=BALANCED)
    if choice.strategy in STRATEGIES:
        return Decided(STRATEGIES[choice.strategy](graph, arch), aim=BALANCED)
    path = Path(choice.strategy)
    decision, notes = read_mapping(path, option("mapping", path), graph, arch)
    return Decided(decision, notes=notes)


PASSES = (frontend.load, *pipeline.PREPARATION, map, *pipeline.LOWERING)
"""All passes, in their order. Their names in `--stop-after`, dumps and messages are those of the functions."""

PASS = OneOf("stop_after", tuple(step.__name__ for step in PASSES))


def compile_model(
    source: "str | Path | onnx.ModelProto",
    arch: Target,
    driver: Driver,
    *,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    constants: Mapping[str, Any],
    base_isa: bool = False,
    requant: Requant | None = None,
    choice: Choice,
    options: Mapping[str, Any],
) -> Artifacts:
    """Runs every pass. Returns the contents of the output directory.

    The options after `constants` are those of `compile_loaded`.
    """
    check_driver(driver, arch)
    model = driver.run(frontend.load, _verify_model, source, shapes=shapes, dims=dims, constants=constants)
    return compile_loaded(model, arch, driver, base_isa=base_isa, requant=requant, choice=choice, options=options)


def check_driver(driver: Driver, arch: Target) -> None:
    """Raises `UserError` for a pass that does not exist, and for a chip too large for its network table."""
    if driver.stop_after is not None:
        PASS.parse(driver.stop_after)
    check_network_size(arch)


def compile_loaded(
    model: Model,
    arch: Target,
    driver: Driver,
    *,
    base_isa: bool,
    requant: Requant | None,
    choice: Choice,
    options: Mapping[str, Any],
) -> Artifacts:
    """Runs every pass after `load`. Returns the contents of the output directory.

    `options` are recorded in the manifest, together with inputs made constants. `base_isa` refuses extended
    instructions. `requant`: how integers are requantised; None for exactly.
    """
    if base_isa:
        _refuse_extensions(model.graph)
    _check_numbers(model.graph, arch, requant, base_isa=base_isa)
    graph = pipeline.prepare(model.graph, arch, Requantising(requant or "exact"), driver=driver)
    decided = driver.run(map, _nothing, graph, arch, choice)
    known = decided.known or None  # nothing is kept longer than needed if nothing is known
    values = pipeline.run(graph, decided.decision, arch, aim=decided.aim, driver=driver, known=known)
    driver.start_checks()
    if sum(len(stream.records) for stream in values[Streams].cores.values()) <= MOST_KEPT:
        driver.keep(values)
    else:
        driver.finish()  # else the checks that run beside hold what they look at
    decision = replace(decided.decision, flow=values[Schedule].flow)
    mapping = mapping_file(decision, graph, arch)
    if choice.emit is not None:
        storage.write_for(option("emit_mapping"), choice.emit, mapping.to_json())
    tiles, memory = values[Partition].graph, values[GlobalMemory]
    program, streams = values[PimProgram], values[Streams]
    if choice.emit_ops is not None:
        flow = operator_flow(values[Graph], program, streams, arch)
        storage.write_for(option("emit_ops"), choice.emit_ops, "".join(f"{line}\n" for line in flow).encode())
    warnings = (*model.notes, *arch.notes, *decided.notes, *flip_notes(graph), *pim.memory_warnings(program, arch))
    return Artifacts(
        name=model.name,
        numbers=tiles.numbers,
        integers=contents.integers(graph, requant or "exact"),
        arch=arch.with_timeout_ms(contents.timeout_ms(tiles, program, streams, arch)),
        options={**options, files.CONSTANT_INPUTS: {n: v.tolist() for n, v in model.constants.items()}},
        config=contents.config(program, arch),
        memory=contents.memory_map(tiles, memory, program, arch),
        layers=contents.layers(program, streams),
        steps=contents.steps(program, streams),
        mapping=mapping,
        report=make_report(values[Graph], tiles, decision, program, streams, arch, warnings, decided.trials),
        records={i: stream.records for i, stream in streams.cores.items()},
        weights=contents.weights(program, tiles),
        constants=memory.constant_values,
        onnx_bytes=model.onnx_bytes,
    )


def _check_numbers(graph: Graph, arch: Target, requant: Requant | None, *, base_isa: bool) -> None:
    """Raises `UserError` for an option that would not act on a graph of these numbers."""
    if graph.numbers == "float":
        if requant is not None:
            raise UserError(f"{option('requant', requant)}: the model has no integers, which alone are requantised")
        return
    if arch.element_bits != INTEGER_BITS:
        raise UserError(
            f"{option('element_bits', arch.element_bits)}: only for models of floats; the types of this model say the "
            "widths of its integers"
        )
    _check_weights(graph, arch)
    if base_isa and requant == "instruction":
        raise UserError(
            f"{option('requant', requant)}: needs the extended instruction vrequant, which {option('base_isa', True)} "
            "excludes"
        )


def _check_weights(graph: Graph, arch: Target) -> None:
    """Raises `UserError` for weights that need more cells than a crossbar has columns."""
    for node in graph.nodes:
        if isinstance(node.operator, Filter) and arch.outputs_of(node.operator.weight_bits) < 1:
            bits = node.operator.weight_bits
            cells = -(-bits // arch.cell_bits)
            raise UserError(
                f"{node.name}: a weight of {bits} bits takes {cells} cells of {arch.cell_bits} bits, but a crossbar "
                f"has only {arch.xbar_cols} columns; try {option('xbar', (arch.xbar_rows, cells))}"
            )


def _verify_model(model: Model) -> None:
    model.graph.verify()


def _nothing(_: Decided) -> None:
    """Checks nothing: a decision is made from the graph or was checked against it, and later values are verified."""


def _refuse_extensions(graph: Graph) -> None:
    """Raises `UnsupportedError` with all nodes that need an instruction outside the published set."""
    nodes = {n.name: (n.op_type, reason) for n in graph.nodes if (reason := extension_fault(n))}
    if nodes:
        raise UnsupportedError([UnsupportedNode(name, *found) for name, found in nodes.items()])


def extension_fault(node: Node) -> str | None:
    """Says which instruction outside the published set a node needs; None if it needs none."""
    found = _extension(node.operator)
    return found and f"needs the extended instruction {found}, which {option('base_isa', True)} excludes"


def _extension(operator: Operator) -> str | None:
    """Returns the extended instruction that an operator needs; None if it needs none."""
    if isinstance(operator, Softmax):
        return "vsoftmax"
    if isinstance(operator, Lookup):
        return "vlut"
    if isinstance(operator, Map) and operator.function in EXTENDED:
        return codegen.VECTOR_OPCODE[operator.function]
    return None
