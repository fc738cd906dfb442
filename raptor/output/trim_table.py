"""Makes `trim.json`: where the sums of trimmable layers can be read, and where their gains and biases are stored."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raptor.graph.requantise.vector_program import TrimStage
from raptor.output import files
from raptor.output.machine_files import CodeFacts
from raptor.output.trim_files import TrimmedLayer, TrimmedPart, TrimTable
from raptor.pim import GlobalMemory, PimProgram
from raptor.pim.ir import TensorTrace
from raptor.pim.operations import Buffer
from raptor.pim.value_numbering import constant_name
from raptor.spatial import SpatialGraph
from raptor.spatial.integer_operations import Requantise
from raptor.spatial.lowering.integer_lowering import TRIM_LABELS
from raptor.target.chip_elements import bytes_of
from raptor.target.tensor_layout import TensorRegion


def make_trim_table(graph: SpatialGraph, memory: GlobalMemory, program: PimProgram, facts: CodeFacts) -> TrimTable:
    """Returns the layers whose sums are requantised with a trim stage, as compiled: nothing is trimmed.

    A layer whose constants do not follow its channels, as in a graph whose columns are turned to rows, is left out.
    """
    places = _constant_places(graph, memory)
    layers = (_layer(trace, places, program, facts) for trace in program.traces)
    found: dict[str, TrimmedLayer] = {}
    for layer in (layer for layer in layers if layer is not None):
        found.setdefault(layer.sums.tensor, layer)  # two tensors of the model may be one in the program
    return TrimTable(layers=tuple(found.values()))


@dataclass(frozen=True, slots=True)
class _Place:
    """Address of a constant in global memory, and bytes of one of its elements."""

    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _TrimmedTile:
    """A tile of untrimmed sums. `bits`: of an element. `gain`, `bias`: its constants."""

    stage: TrimStage
    bits: int
    probe: files.ProbeTile
    gain: _Place
    bias: _Place


def _constant_places(graph: SpatialGraph, memory: GlobalMemory) -> Mapping[str, _Place]:
    """Returns the places of gains and biases, by the names of their buffers."""
    found: dict[str, _Place] = {}
    for constant in graph.dataflow.constants:
        if constant.label and constant.pixels == 1:
            address = memory.constants[constant.name]
            found[constant_name(address, constant)] = _Place(address, bytes_of(constant.element.bits))
    return found


def _layer(
    trace: TensorTrace, places: Mapping[str, _Place], program: PimProgram, facts: CodeFacts
) -> TrimmedLayer | None:
    """Returns the entry of the layer whose sums are requantised to a tensor; None if there is none."""
    found = [*_sums(trace, places, program, facts)]
    if len(found) < len(trace.regions) or not found:
        return None
    stage, parts = found[0].stage, defaultdict[tuple[object, ...], list[int]](list)
    for number, tile in enumerate(found):
        parts[tile.probe.channels, tile.gain, tile.bias].append(number)
    sums = files.TensorProbe(
        tensor=stage.tensor,
        node=stage.layer,
        coding=files.TensorCoding(kind="int", bits=found[0].bits, dtype="int32"),
        image_shape=trace.image.shape,
        channel_axis=trace.image.channel_axis,
        turned=trace.image.turned,
        tiles=tuple(tile.probe for tile in found),
    )
    return TrimmedLayer(
        sums=sums,
        shift=stage.shift,
        low=stage.low,
        high=stage.high,
        most_gain=stage.most_gain,
        most_bias=stage.most_bias,
        parts=tuple(_part(found[numbers[0]], numbers) for numbers in parts.values()),
    )


def _part(tile: _TrimmedTile, numbers: Sequence[int]) -> TrimmedPart:
    """Returns the part of a layer that has the gains and biases of a tile, as compiled. `numbers`: of its tiles."""
    channels = tile.probe.region.channel_count
    return TrimmedPart(
        channels=tile.probe.channels,
        tiles=tuple(numbers),
        gain=tile.gain.address,
        gain_bytes=tile.gain.bytes,
        bias=tile.bias.address,
        gains=(tile.stage.unit_gain,) * channels,
        biases=(tile.stage.unit_bias,) * channels,
    )


def _sums(
    trace: TensorTrace, places: Mapping[str, _Place], program: PimProgram, facts: CodeFacts
) -> Iterator[_TrimmedTile]:
    """Yields the untrimmed sums of each tile of a tensor that has them.

    They lie in the operand of the requantisation that makes the tile, directly before its first instruction.
    """
    for region, core, step in zip(trace.regions, trace.core.tolist(), trace.step.tolist(), strict=True):
        own = program.cores[core]
        assert own.addresses is not None, "buffers have addresses"
        operation = own.steps.operation(step - 1)
        if isinstance(operation, Requantise) and operation.recipe.trim is not None:
            stage = operation.recipe.trim
            gain, bias = (_find_place(operation, step, places) for step in range(len(TRIM_LABELS)))
            if gain is None or bias is None or operation.result.channels != region.channel_count:
                continue
            source = operation.sources[stage.operand]
            used = own.steps.used[own.steps.start[step - 1] : own.steps.start[step]].tolist()
            number = next(n for n in used if own.steps.buffers.name(n) == source.name)
            pc = int(facts.step_ends[core][step - 1])
            probe = _tile(region, core, pc, int(own.addresses[number]))
            yield _TrimmedTile(stage, source.element.bits, probe, gain, bias)


def _find_place(operation: Requantise[Buffer], step: int, places: Mapping[str, _Place]) -> _Place | None:
    """Returns the place of the constants that a step of a recipe reads: as they are, or repeated for each pixel."""
    name = operation.tables[int(operation.index[0, step])].name
    return places.get(name) or places.get(name.rpartition(".")[0])


def _tile(region: TensorRegion, core: int, pc: int, address: int) -> files.ProbeTile:
    return files.ProbeTile(
        channels=region.channels, rows=region.rows, cols=region.cols, core=core, pc=pc, address=address
    )
