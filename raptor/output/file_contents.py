"""Contents of output files, made from the compiled program; `raptor.output.writer` writes them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson

from raptor import pim
from raptor.common.options.option_values import Requant
from raptor.graph.decoder_steps import DecoderSteps
from raptor.graph.ir import Filter, Graph, Requantise
from raptor.graph.requantise.vector_program import RequantiseRecipe
from raptor.graph.residency import StatePair
from raptor.output import decoder_files, files, resident_files
from raptor.output.crossbar_matrices import CrossbarMatrices
from raptor.output.machine_files import CodeFacts
from raptor.pim import GlobalMemory, PimProgram
from raptor.pim.auxiliary_programs import auxiliary_programs
from raptor.pim.ir import CoreProgram
from raptor.pim.operations import operation_name
from raptor.pim.step_columns import Ints
from raptor.spatial import SpatialGraph
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT, ElementCoding, ElementType
from raptor.target.tensor_layout import TensorRegion

T = TypeVar("T")


def make_config(program: PimProgram, arch: Target) -> files.SimulatorConfig:
    """Returns `config.json`: the crossbars of each array group, for all cores of the chip."""
    groups = {f"core{i}": () for i in range(arch.core_count)}
    groups |= {f"core{i}": tuple(g.matrix.xbars for g in core.groups) for i, core in program.cores.items()}
    return files.SimulatorConfig(core_cnt=arch.core_count, array_group_map=groups)


def make_memory_map(graph: SpatialGraph, memory: GlobalMemory, program: PimProgram, arch: Target) -> files.MemoryMap:
    """Returns `memory.json`: inputs, constants and outputs in global memory."""
    # Memory of integers is counted in bytes.
    bits, width = (arch.element_bits, arch.element_bytes) if graph.numbers == "float" else (8, 1)
    used = {i: core.local_bytes for i, core in program.cores.items()}
    return files.MemoryMap(
        element_bits=bits,
        element_bytes=width,
        size_bytes=memory.size_bytes,
        local_bytes=tuple(used.get(i, 0) for i in range(arch.core_count)),
        inputs=tuple(_tensor_place(graph, n, memory.inputs[n]) for n in graph.inputs),
        constants=files.ConstantsPlace(address=memory.constants_address, elements=memory.constant_values.size),
        tables=tuple(_tables(program)),
        outputs=tuple(_tensor_place(graph, n, addresses) for n, addresses in memory.outputs.items()),
    )


def _tables(program: PimProgram) -> Iterator[files.TablePlace]:
    """Yields each table whose rows are loaded from computed addresses."""
    steps = [core.steps for core in program.cores.values()]
    found = (of.operation(i) for of in steps for i in of.of_class(pim.LoadRows).tolist())
    loads = [op for op in found if isinstance(op, pim.LoadRows)]
    for address, rows, stride in dict.fromkeys((load.table, load.rows, load.stride) for load in loads):
        yield files.TablePlace(address=address, rows=rows, stride=stride)


def _tensor_place(graph: SpatialGraph, name: str, addresses: tuple[int, ...]) -> files.TensorPlace:
    """Returns the location of a model input or output in global memory. `addresses`: of its tiles."""
    tensor = graph.tensors[name]
    return files.TensorPlace(
        name=name,
        coding=_coding(tensor.parts[0].tile.element, tensor.coding),
        shape=tensor.shape,
        image_shape=tensor.image.shape,
        channel_axis=tensor.image.channel_axis,
        turned=tensor.image.turned,
        tiles=tuple(
            files.TilePlace(channels=p.region.channels, rows=p.region.rows, cols=p.region.cols, address=at)
            for p, at in zip(tensor.parts, addresses, strict=True)
        ),
    )


def make_integer_proofs(graph: Graph, requant: Requant) -> files.IntegerProofs | None:
    """Returns the proofs about an integer program for the manifest; None for a float program."""
    if graph.arithmetic == "float":
        return None
    recipes = [n.operator.recipe for n in graph.nodes if isinstance(n.operator, Requantise)]
    sums = (graph.tensors[n.output].element for n in graph.nodes if isinstance(n.operator, Filter))
    return files.IntegerProofs(
        requant=requant,
        requantisations=len(recipes),
        flips=sum(recipe.flips for recipe in recipes if isinstance(recipe, RequantiseRecipe)),
        sum_bits={f"{bits}": count for bits, count in sorted(Counter(element.bits for element in sums).items())},
        float_nodes=graph.float_nodes,
    )


def _coding(element: ElementType, coding: ElementCoding | None) -> files.TensorCoding | None:
    """Returns the coding of a tensor; None for float32 in a float program. No `coding`: elements are the values."""
    if element == MODELLED_FLOAT and coding is None:
        return None
    given = coding or ElementCoding("float32" if element.kind == "float" else f"int{element.bits}")
    return files.TensorCoding(
        kind=element.kind,
        bits=element.bits,
        dtype=given.dtype,
        offset=given.offset,
        scale=given.scale,
        zero_point=given.zero_point,
        axis=given.axis,
        low=given.low,
        high=given.high,
    )


def make_layers(program: PimProgram, facts: CodeFacts) -> bytes:
    """Returns `layers.json`: core, instruction and address at which each tile of each tensor can be read.

    NOTE: this makes no schema objects: a program has many tiles, and they would take longer than all other contents.
    """
    places = _tile_locations(program, facts)
    probes = [
        files.TensorProbe(
            tensor=t.tensor,
            node=t.node,
            coding=_coding(t.element, t.coding),
            image_shape=t.image.shape,
            channel_axis=t.image.channel_axis,
            turned=t.image.turned,
            tiles=(),
        ).model_dump(mode="json")
        | {"tiles": [_probe_tile(region, *next(places)) for region in t.regions]}
        for t in program.traces
    ]
    made = {"version": files.FORMAT_VERSION, "probes": probes}
    return orjson.dumps(made, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _tile_locations(program: PimProgram, facts: CodeFacts) -> Iterator[tuple[int, int, int]]:
    """Yields for each tile of all traces its core, the instruction before which it can be read, and its address."""
    none = np.zeros(0, np.int64)
    on = np.concatenate([none, *(trace.core for trace in program.traces)])
    step = np.concatenate([none, *(trace.step for trace in program.traces)])
    pc, address = np.zeros_like(on), np.zeros_like(on)
    for core in np.unique(on).tolist():
        own, program_of = np.flatnonzero(on == core), program.cores[core]
        assert program_of.addresses is not None, "buffers have addresses"
        pc[own] = facts.step_ends[core][step[own]]
        address[own] = program_of.addresses[program_of.steps.results(step[own] - 1)]
    return zip(on.tolist(), pc.tolist(), address.tolist(), strict=True)


def _probe_tile(region: TensorRegion, core: int, pc: int, address: int) -> dict[str, Any]:
    """Returns the fields of a `ProbeTile`."""
    channels, rows, cols = region.channels, region.rows, region.cols
    return {"channels": channels, "rows": rows, "cols": cols, "core": core, "pc": pc, "address": address}


def make_steps(program: PimProgram, facts: CodeFacts) -> bytes:
    """Returns `steps.json`: the node and the operation that each instruction belongs to.

    The prologue of a core belongs to its first step.
    """
    steps = {i: core.steps for i, core in program.cores.items() if len(core.steps)}
    nodes, operations = dict[str, int](), dict[type, int]()
    cores: list[dict[str, Any]] = []
    for i, core in steps.items():
        ends = np.ascontiguousarray(facts.step_ends[i][1:])
        of_node, of_kind = _numbers(core.node, core.nodes, nodes), _numbers(core.form, core.forms.classes, operations)
        cores.append({"core": i, "ends": ends, "nodes": of_node, "operations": of_kind})
    names = [operation_name(kind) for kind in operations]
    made = {"version": files.FORMAT_VERSION, "nodes": list(nodes), "operations": names, "cores": cores}
    return orjson.dumps(made, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _numbers(which: Ints, things: Sequence[T], known: dict[T, int]) -> Ints:
    """Maps indices into `things` to numbers in `known`. Things that it lacks are added in order of first occurrence."""
    indices, first = np.unique(which, return_index=True)
    number = np.zeros(len(things), np.int64)
    in_order: list[int] = indices[np.argsort(first)].tolist()
    for index in in_order:
        number[index] = known.setdefault(things[index], len(known))
    return number[which]


def make_decoder(steps: DecoderSteps) -> decoder_files.DecoderFile:
    """Returns the contents of `decoder.json`."""
    return decoder_files.DecoderFile(
        capacity=steps.capacity,
        position=steps.position,
        states=tuple(
            decoder_files.GrowingStateFile(
                input=s.input, output=s.output, axis=s.axis, permutation=s.permutation, rows=s.rows
            )
            for s in steps.states
        ),
        derived=tuple(
            decoder_files.DerivedInputFile(name=d.name, kind=d.kind, shape=d.shape, dtype=d.dtype)
            for d in steps.derived
        ),
        stacks=tuple(
            decoder_files.StackedStateFile(
                input=s.input,
                output=s.output,
                parts=tuple(decoder_files.StatePartFile(input=p.input, output=p.output) for p in s.parts),
            )
            for s in steps.stacks
        ),
        cache_nodes=steps.cache_nodes,
    )


def make_resident(graph: SpatialGraph, program: PimProgram, arch: Target) -> resident_files.ResidentMap | None:
    """Returns what stays on the chip between samples; None if a program forgets everything."""
    auxiliary = auxiliary_programs(program)
    if files.INIT not in auxiliary:
        return None
    cores = tuple(_resident_spans(program.cores[i], arch) for i in auxiliary[files.INIT])
    tiles = _resident_tiles(graph, program)
    states = tuple(_resident_state(graph, pair, tiles[pair.input]) for pair in graph.residency.states)
    late = [(name, passes) for name, passes in program.delays.items() if passes]
    delays = tuple(resident_files.OutputDelay(output=name, passes=passes) for name, passes in late)
    return resident_files.ResidentMap(cores=cores, states=states, delays=delays)


def _resident_tiles(graph: SpatialGraph, program: PimProgram) -> dict[str, list[resident_files.LocalTile]]:
    """Returns where each core holds parts of states, by the input of the state."""
    inputs = [pair.input for pair in graph.residency.states]
    regions = {part.tile.name: (name, part.region) for name in inputs for part in graph.tensors[name].parts}
    found: dict[str, list[resident_files.LocalTile]] = {name: [] for name in inputs}
    for core in program.cores.values():
        assert core.addresses is not None, "buffers have addresses"
        for number in core.resident.tolist():
            name, region = regions.get(core.steps.buffers.name(number), (None, None))
            if name is not None and region is not None:
                tile = resident_files.LocalTile(
                    channels=region.channels,
                    rows=region.rows,
                    cols=region.cols,
                    core=core.core,
                    address=int(core.addresses[number]),
                )
                found[name].append(tile)
    return found


def _resident_state(
    graph: SpatialGraph, pair: StatePair, tiles: Sequence[resident_files.LocalTile]
) -> resident_files.ResidentState:
    """Returns a state with its `tiles`, which cores hold."""
    tensor = graph.tensors[pair.input]
    return resident_files.ResidentState(
        input=pair.input,
        output=pair.output,
        coding=_coding(tensor.parts[0].tile.element, tensor.coding),
        shape=tensor.shape,
        image_shape=tensor.image.shape,
        channel_axis=tensor.image.channel_axis,
        tiles=tuple(tiles),
    )


def _resident_spans(core: CoreProgram, arch: Target) -> resident_files.ResidentCore:
    """Returns the spans of a core's resident buffers, by address."""
    assert core.addresses is not None, "buffers have addresses"
    start, size = core.addresses[core.resident], core.steps.buffers.sizes(arch)[core.resident]
    spans = sorted(zip(start.tolist(), size.tolist(), strict=True))
    return resident_files.ResidentCore(core=core.core, spans=tuple(spans))


def collect_weights(program: PimProgram, graph: SpatialGraph) -> dict[int, CrossbarMatrices]:
    """Returns the matrices of each core that has array groups."""
    return {i: CrossbarMatrices(core.groups, graph.filters) for i, core in program.cores.items() if core.groups}
