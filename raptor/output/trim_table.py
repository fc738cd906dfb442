"""Makes `trim.json`: where the sums of trimmable layers can be read, and where their gains and biases are stored."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from raptor.graph.requantise.vector_program import TrimStage
from raptor.output import files
from raptor.output.machine_files import CodeFacts
from raptor.pim import GlobalMemory, PimProgram
from raptor.pim.ir import TensorTrace
from raptor.spatial import SpatialGraph
from raptor.spatial.integer_operations import Requantise
from raptor.spatial.lowering.integer_lowering import TRIM_LABELS
from raptor.target.chip_elements import bytes_of
from raptor.target.tensor_layout import TensorRegion


def make_trim_table(
    graph: SpatialGraph, memory: GlobalMemory, program: PimProgram, facts: CodeFacts
) -> files.TrimTable:
    """Returns the layers whose sums are requantised with a trim stage, as compiled: nothing is trimmed.

    A layer whose constants do not follow its channels, as in a graph whose columns are turned to rows, is left out.
    """
    places = _constant_places(graph, memory)
    layers = (_layer(trace, places, program, facts) for trace in program.traces)
    found: dict[str, files.TrimmedLayer] = {}
    for layer in (layer for layer in layers if layer is not None):
        found.setdefault(layer.sums.tensor, layer)  # two tensors of the model may be one in the program
    return files.TrimTable(layers=tuple(found.values()))


_Places = Mapping[str, Mapping[tuple[int, int], Mapping[str, tuple[int, int]]]]
"""Address and bytes of the gains and biases, by tensor, range of channels, and word of `TRIM_LABELS`."""


def _constant_places(graph: SpatialGraph, memory: GlobalMemory) -> _Places:
    found: defaultdict[str, defaultdict[tuple[int, int], dict[str, tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for constant in graph.dataflow.constants:
        if constant.label and constant.pixels == 1:
            kind, first, end, tensor = constant.label.split(" ", 3)
            if constant.channels == int(end) - int(first):
                place = memory.constants[constant.name], bytes_of(constant.element.bits)
                found[tensor][int(first), int(end)][kind] = place
    return found


def _layer(trace: TensorTrace, places: _Places, program: PimProgram, facts: CodeFacts) -> files.TrimmedLayer | None:
    """Returns the entry of the layer whose sums are requantised to a tensor; None if there is none."""
    found = [*_sums(trace, program, facts)]
    if len(found) < len(trace.regions) or not found:
        return None
    stage, bits = found[0][0], found[0][1]
    constants = places.get(stage.tensor, {})
    channels = trace.image.channels
    cover = np.zeros(channels, np.int64)
    for (first, end), kinds in constants.items():
        cover[first:end] += len(kinds) == len(TRIM_LABELS)
    if not cover.all():
        return None
    coding = files.TensorCoding(kind="int", bits=bits, dtype="int32")
    sums = files.TensorProbe(
        tensor=stage.tensor,
        node=stage.layer,
        coding=coding,
        image_shape=trace.image.shape,
        channel_axis=trace.image.channel_axis,
        turned=trace.image.turned,
        tiles=tuple(tile for _, _, tile in found),
    )
    return files.TrimmedLayer(
        sums=sums,
        shift=stage.shift,
        low=stage.low,
        high=stage.high,
        most_gain=stage.most_gain,
        most_bias=stage.most_bias,
        constants=tuple(
            files.TrimConstants(
                channels=span, gain=kinds["gain"][0], gain_bytes=kinds["gain"][1], bias=kinds["bias"][0]
            )
            for span, kinds in constants.items()
        ),
        gains=(stage.unit_gain,) * channels,
        biases=(stage.unit_bias,) * channels,
    )


def _sums(
    trace: TensorTrace, program: PimProgram, facts: CodeFacts
) -> Iterator[tuple[TrimStage, int, files.ProbeTile]]:
    """Yields stage, bits of an element and place of the untrimmed sums of each tile of a tensor that has them.

    The sums lie in the operand of the requantisation that makes the tile, directly before its first instruction.
    """
    for region, core, step in zip(trace.regions, trace.core.tolist(), trace.step.tolist(), strict=True):
        own = program.cores[core]
        assert own.addresses is not None, "buffers have addresses"
        operation = own.steps.operation(step - 1)
        if isinstance(operation, Requantise) and operation.recipe.trim is not None:
            stage = operation.recipe.trim
            source = operation.sources[stage.operand]
            used = own.steps.used[own.steps.start[step - 1] : own.steps.start[step]].tolist()
            number = next(n for n in used if own.steps.buffers.name(n) == source.name)
            pc = int(facts.step_ends[core][step - 1])
            yield stage, source.element.bits, _tile(region, core, pc, int(own.addresses[number]))


def _tile(region: TensorRegion, core: int, pc: int, address: int) -> files.ProbeTile:
    return files.ProbeTile(
        channels=region.channels, rows=region.rows, cols=region.cols, core=core, pc=pc, address=address
    )
