"""Caches of a fixed size: finds states of which each step writes a row, and makes them states that grow.

torch exports such a static cache as an input of all rows, and as an output in which the row of the position is another
one. Many operators write it: ScatterND, ScatterElements, TensorScatter, Where, with any moves around them. So no
pattern is searched. The nodes between input and output run in onnxruntime, on numbers that name the elements, at every
position. If the output has all elements of the input in their places, but for one row, which holds all elements of one
other tensor, then the step appends that row to the rows before it, and the oldest row leaves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name
from raptor.common.options.option_texts import AUTOMATIC
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames, rename_reads, replace_nodes
from raptor.frontend.growing.decoder_inputs import DecoderInputs
from raptor.frontend.growing.position_values import compute_by_position, measure_shapes
from raptor.frontend.growing.tensor_knowledge import Knowledge, classify_tensors
from raptor.frontend.proto.model_checks import extract_fault
from raptor.frontend.proto.nodes import read_attributes
from raptor.frontend.proto.onnx_wrappers import run_model
from raptor.frontend.proto.read_model import copy_header, find_reads
from raptor.frontend.state_pairs import find_named_pairs
from raptor.graph.decoder_steps import GrowingState
from raptor.graph.residency import StatePair

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_MOST_ELEMENTS = 2**24 - 1
"""Most elements of a cache and a row; float32 holds each number up to here."""
_AT_ONCE = 16
"""Number of positions whose caches are in memory at the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """The nodes between a state and its next value. `new`: the only other tensor of data that they read.

    `given`: tensors that the position determines, with their values by position, and constants.
    """

    pair: StatePair
    nodes: Sequence[NodeProto]
    new: str
    shape: Shape
    new_shape: Shape
    given: Mapping[str, Sequence[Array]]
    constants: Sequence[TensorProto]

    @property
    def made(self) -> list[str]:
        """The tensors that the nodes make."""
        return [name for node in self.nodes for name in node.output if name]

    def key(self) -> tuple[object, ...]:
        """Returns a value that regions have in common if they write equal rows at all positions."""
        numbers = {name: str(k) for k, name in enumerate((self.pair.input, self.new, *self.made))}
        values = {name: b"".join(a.tobytes() for a in found) for name, found in self.given.items()}
        values |= {t.name: t.SerializeToString() for t in self.constants}
        nodes = [
            (n.op_type, n.domain, repr(read_attributes(n)), *(numbers.get(x) or values.get(x, b"") for x in n.input))
            for n in self.nodes
        ]
        return self.shape, self.new_shape, tuple(nodes)


@dataclass(frozen=True, slots=True, eq=False)
class _RowWrite:
    """A write of one row of a cache: the step at position P writes row P modulo the number of rows, along `axis`.

    `order`: for each element of the row, in C order, the number of an element of the tensor that holds it. `shapes`: of
    the tensors in `_Region.made`. `moved`: those that are the cache after the write, as orders of its axes, by place.
    """

    axis: int
    order: tuple[int, ...]
    shapes: Sequence[Shape]
    moved: Mapping[int, tuple[int, ...]]


def append_written_rows(
    proto: ModelProto, inputs: DecoderInputs, pairs: Mapping[str, str], capacity: int
) -> DecoderInputs:
    """Replaces what writes a row of each cache of fixed size by a Concat of the rows before and the new row, in place.

    `pairs`: states as the user names them, or `AUTOMATIC`. `capacity`: number of positions. Returns the inputs of the
    decoder, with these caches as states. States that are no such caches stay as they are. Raises `UserError` for a
    step that writes another row than that of its position modulo the number of rows.
    """
    # A mask of fixed size has a value for each row of the cache, which is not known to be 1.
    derived = {name: kind for name, kind in inputs.derived.items() if kind != "ones"}
    inputs = replace(inputs, derived=derived)
    ends = dict.fromkeys(inputs.shapes, ()), {v.name: () for v in proto.graph.output}
    if pairs == AUTOMATIC and not find_named_pairs(*ends):
        return inputs
    regions = _find_regions(proto, inputs, pairs, capacity)
    known: dict[tuple[object, ...], _RowWrite | None] = {}
    states: list[GrowingState] = []
    appends: dict[str, NodeProto] = {}
    shapes = dict(inputs.shapes)
    names = UniqueNames(proto.graph)
    for region in regions:
        key = region.key()
        if key not in known:
            known[key] = _find_write(proto, region, capacity)
        write = known[key]
        if write is not None:
            appends[region.pair.input] = _replace_region(proto, region, write, names)
            states.append(GrowingState(*_names(region), write.axis, (), region.shape[write.axis]))
            shapes[region.pair.input] = tuple(0 if d == write.axis else n for d, n in enumerate(region.shape))
    return replace(inputs, states=tuple(states), appends=appends, shapes=shapes)


def _names(region: _Region) -> tuple[str, str]:
    return region.pair.input, region.pair.output


def _find_regions(proto: ModelProto, inputs: DecoderInputs, pairs: Mapping[str, str], capacity: int) -> list[_Region]:
    """Returns the nodes between each state of floats and its next value, if they read one other tensor of data."""
    known = classify_tensors(proto, inputs.shapes, inputs.derived)
    shapes = measure_shapes(proto, inputs, (0,))[0]
    floats = {v.name for v in proto.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    found: list[tuple[StatePair, list[NodeProto], str]] = []
    for pair in _candidates(proto, inputs, shapes, pairs):
        nodes = _nodes_between(proto, pair, known)
        made = {name for node in nodes for name in node.output}
        read = {name for node in nodes for name in find_reads(node)} - made - {pair.input}
        data = sorted(name for name in read if known.get(name) == "data")
        if nodes and len(data) == 1 and pair.input in floats:
            found.append((pair, nodes, data[0]))
    weights = {t.name: t for t in proto.graph.initializer}
    reads = {name for _, nodes, _ in found for node in nodes for name in find_reads(node)}
    of_position = {name for name in reads if known.get(name) == "position"}
    made_by_position = sorted(name for name in of_position if name not in inputs.shapes)
    values: dict[str, list[Array]] = compute_by_position(proto, made_by_position, inputs, capacity)
    own = of_position - values.keys()
    given = [inputs.values(p, own) for p in range(capacity)]
    values |= {name: [step[name] for step in given] for name in own}
    regions: list[_Region] = []
    for pair, nodes, new in found:
        read = {name for node in nodes for name in find_reads(node)}
        of_positions = {name: values[name] for name in sorted(read & values.keys())}
        constants = [weights[name] for name in sorted(read & weights.keys())]
        regions.append(_Region(pair, nodes, new, shapes[pair.input], shapes[new], of_positions, constants))
    return regions


def _candidates(
    proto: ModelProto, inputs: DecoderInputs, shapes: Mapping[str, Shape], pairs: Mapping[str, str]
) -> list[StatePair]:
    """Returns the states that the user or their names tell, whose input and output have the same shape."""
    made = {v.name: shapes[v.name] for v in proto.graph.output}
    given = {name: shape for name, shape in inputs.shapes.items() if name not in inputs.derived}
    named = find_named_pairs(given, made) if pairs == AUTOMATIC else [StatePair(*names) for names in pairs.items()]
    return [
        pair
        for pair in named
        if given.get(pair.input) == made.get(pair.output, ()) and 1 < np.prod(made[pair.output]) <= _MOST_ELEMENTS
    ]


def _nodes_between(proto: ModelProto, pair: StatePair, known: Mapping[str, Knowledge]) -> list[NodeProto]:
    """Returns the nodes on all ways from a state to its next value, in order."""
    reached, wanted = {pair.input}, {pair.output}
    ahead = [n for n in proto.graph.node if known.get(n.output[0]) == "data" and _extends(reached, n)]
    found = [node for node in reversed(ahead) if wanted.intersection(node.output) and not wanted.update(node.input)]
    return found[::-1]


def _extends(reached: set[str], node: NodeProto) -> bool:
    """Adds what a node makes to the tensors that are reached, if it reads one of them."""
    if reached.isdisjoint(node.input):
        return False
    reached.update(node.output)
    return True


def _find_write(proto: ModelProto, region: _Region, capacity: int) -> _RowWrite | None:
    """Returns the row that a region writes; None if it does something else."""
    cache = -1.0 - np.arange(np.prod(region.shape), dtype=np.float32).reshape(region.shape)
    new = 1.0 + np.arange(np.prod(region.new_shape), dtype=np.float32).reshape(region.new_shape)
    write: _RowWrite | None = None
    for position, made in enumerate(_run_region(proto, region, cache, new, range(capacity))):
        after = made[region.pair.output]
        found = _read_write(after, cache, new.size)
        if write is None:
            if found is None:
                return None
            shapes = [made[name].shape for name in region.made]
            write = _RowWrite(*found, shapes, _find_moved(region, made))
        rows = region.shape[write.axis]
        if found != (write.axis, write.order) or (after.take(position % rows, write.axis) < 0).any():
            raise UserError(
                f"{region.pair.output}: the step at position {position} does not write row {position % rows} of "
                f"{region.pair.input}, a cache of {rows} rows; a step must write the row of its position"
            )
    return write if write and _only_moves(proto, region, write) else None


def _read_write(after: Array, cache: Array, count: int) -> tuple[int, tuple[int, ...]] | None:
    """Returns axis and order of the row that differs between two caches, see `_RowWrite`; None if something else does.

    `cache`: negative numbers. The row has the numbers 1 to `count`.
    """
    written = after != cache
    for axis in range(cache.ndim):
        others = tuple(d for d in range(cache.ndim) if d != axis)
        at = np.flatnonzero(written.any(others))
        if len(at) == 1 and written.take(at[0], axis).all():
            order: list[int] = (after.take(at[0], axis).reshape(-1) - 1).astype(np.int64).tolist()
            return (axis, tuple(order)) if sorted(order) == list(range(count)) else None
    return None


def _only_moves(proto: ModelProto, region: _Region, write: _RowWrite) -> bool:
    """Checks that a region moves numbers of any size and sign, and does not round or bound them."""
    rng = np.random.default_rng(0)
    cache, new = (
        (rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape)).astype(np.float32)
        for shape in (region.shape, region.new_shape)
    )
    (made,) = _run_region(proto, region, cache, new, [0])
    row = new.reshape(-1)[list(write.order)]
    index = tuple(0 if d == write.axis else slice(None) for d in range(cache.ndim))
    cache[index] = row.reshape(cache[index].shape)
    return np.array_equal(made[region.pair.output], cache)


def _run_region(
    proto: ModelProto, region: _Region, cache: Array, new: Array, positions: Sequence[int]
) -> Iterator[Mapping[str, Array]]:
    """Yields, for each position, the tensors that the nodes of a region make, by name. Runs them in onnxruntime.

    Raises `UserError` if it cannot run them.
    """
    part = copy_header(proto)
    part.graph.node.extend(region.nodes)
    part.graph.initializer.extend(region.constants)
    whole = {region.pair.input: cache, region.new: new}
    feeds = [{**whole, **{n: a[p] for n, a in region.given.items()}} for p in positions]
    for name, array in feeds[0].items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        part.graph.input.append(helper.make_tensor_value_info(name, kind, [None] * array.ndim))
    part.graph.output.extend(ValueInfoProto(name=name) for name in region.made)
    for first in range(0, len(feeds), _AT_ONCE):
        several = feeds[first : first + _AT_ONCE]
        try:
            yield from run_model(part, several)
        except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
            last = positions[first + len(several) - 1]
            raise UserError(
                f"{region.pair.output}: onnxruntime cannot write a row of {region.pair.input}, of shape "
                f"{list(region.shape)}, at all positions up to {last} ({spell_name('capacity')}): "
                f"{extract_fault(error)}"
            ) from None


def _find_moved(region: _Region, made: Mapping[str, Array]) -> Mapping[int, tuple[int, ...]]:
    """Returns what the nodes make from the cache after the write, as orders of the cache's axes."""
    after = made[region.pair.output]
    found: dict[int, tuple[int, ...]] = {}
    for place, name in enumerate(region.made):
        for order in permutations(range(after.ndim)) if made[name].size == after.size else ():
            if np.array_equal(made[name], after.transpose(order)):
                found[place] = order
                break
    return found


def _replace_region(proto: ModelProto, region: _Region, write: _RowWrite, names: UniqueNames) -> NodeProto:
    """Replaces the nodes of a region by a Concat of the rows before and the new row, in place, and returns it."""
    own, graph = set(region.made), proto.graph
    _keep_shapes(proto, region, write, names)
    rest = [node for node in graph.node if own.isdisjoint(node.output)]
    read = {name for node in rest for name in find_reads(node)} - {region.pair.output}
    row = names.unique_tensor(f"{region.pair.output}.row")
    made = list(_row_nodes(proto, region, write, row, names))
    (past, present), label = _names(region), region.nodes[-1].name or region.pair.output
    append = helper.make_node("Concat", [past, row], [present], name=label, axis=write.axis)
    made.append(append)
    for place, name in enumerate(region.made):
        if name in read:
            if place not in write.moved:
                raise UserError(f"{name}: the model reads {region.pair.input} before its new row is written")
            order = list(write.moved[place])
            made.append(helper.make_node("Transpose", [present], [name], name=name, perm=order))
    first = next(k for k, n in enumerate(graph.node) if region.new in n.input and not own.isdisjoint(n.output))
    before = [n for n in graph.node[:first] if own.isdisjoint(n.output)]
    behind = [n for n in graph.node[first:] if own.isdisjoint(n.output)]
    replace_nodes(graph, [*before, *made, *behind])
    value = next(v for v in graph.input if v.name == past)
    value.type.tensor_type.shape.dim[write.axis].Clear()
    return append


def _row_nodes(
    proto: ModelProto, region: _Region, write: _RowWrite, row: str, names: UniqueNames
) -> Iterator[NodeProto]:
    """Yields the nodes that make the new row, with the axes of the cache, from the tensor that holds it."""
    shape = [1 if d == write.axis else n for d, n in enumerate(region.shape)]
    source = region.new

    def constant(values: Sequence[int]) -> str:
        name = names.unique_tensor(f"{row}.constant")
        proto.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    if write.order != tuple(range(len(write.order))):
        flat, source = names.unique_tensor(f"{row}.flat"), names.unique_tensor(f"{row}.ordered")
        yield helper.make_node("Reshape", [region.new, constant([-1])], [flat], name=flat)
        yield helper.make_node("Gather", [flat, constant(write.order)], [source], name=source, axis=0)
    yield helper.make_node("Reshape", [source, constant(shape)], [row], name=row)


def _keep_shapes(proto: ModelProto, region: _Region, write: _RowWrite, names: UniqueNames) -> None:
    """Makes constants of what reads the shapes of a cache: its input will lack the row that a step appends."""
    shapes = {region.pair.input: region.shape, **dict(zip(region.made, write.shapes, strict=True))}
    kept: list[NodeProto] = []
    renamed: dict[str, str] = {}
    for node in proto.graph.node:
        rename_reads(node, renamed)
        shape = shapes.get(node.input[0]) if node.op_type in ("Shape", "Size") else None
        if shape is None:
            kept.append(node)
            continue
        ends = read_attributes(node)
        dims = np.array(shape, np.int64)[ends.get("start", 0) : ends.get("end")]
        value = dims if node.op_type == "Shape" else np.array(np.prod(shape), np.int64)
        renamed[node.output[0]] = names.unique_tensor(node.output[0])
        proto.graph.initializer.append(numpy_helper.from_array(value, renamed[node.output[0]]))
    replace_nodes(proto.graph, kept)
