"""Rewrites a decoder whose caches grow to one step on caches of a fixed capacity.

The step is the model at its last position, when the caches are full: all its shapes are static. What the position alone
determines (masks, angles, embeddings of positions) becomes a table with a row for each position, and the step reads the
row of its position. A cache moves by a row, and its new row comes last; a softmax over a cache gets a mask of the rows
that no step has appended. A cache whose rows a product adds up is stored with its rows side by side.

A cache of fixed size, of which the model writes a row in place, moves by a row, too. The oldest row leaves, which is
the one that the model overwrites. So row P of the model is the last one, and a value for each row, such as a mask, is
turned by P + 1 rows. Rows that the model has not written are 0 on both sides, and its own masks hide them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.common.errors import UserError
from raptor.frontend.contributed.attention_expansions import MASKED
from raptor.frontend.control_flow.inline_subgraphs import UniqueNames
from raptor.frontend.growing.decoder_inputs import DecoderInputs, read_decoder_inputs, require_states
from raptor.frontend.growing.growth_rules import Growth
from raptor.frontend.growing.move_factors import move_factors
from raptor.frontend.growing.position_values import compute_by_position, measure_shapes
from raptor.frontend.growing.resolve_model import resolve_model
from raptor.frontend.growing.row_axes import find_row_axes
from raptor.frontend.growing.split_stacks import split_stacks
from raptor.frontend.growing.tensor_knowledge import Knowledge, classify_tensors
from raptor.frontend.growing.written_rows import append_written_rows
from raptor.frontend.proto.model_checks import PARAMETER_INPUTS
from raptor.frontend.proto.read_model import SourceModel, copy_header, find_reads, read_proto
from raptor.graph.decoder_steps import DecoderSteps, GrowingState, StackedState, split_pairs
from raptor.options import ModelInputs

Array = npt.NDArray[Any]
_POSITION = "position"


@dataclass(frozen=True, slots=True, eq=False)
class StepModel:
    """A step of a decoder: `model`, an ONNX model with static shapes, and how its steps stand for the original."""

    model: SourceModel
    steps: DecoderSteps


def make_step_model(source: SourceModel, pairs: Mapping[str, str], capacity: int, fixed: ModelInputs) -> StepModel:
    """Returns one step of a decoder. `pairs`: its states by input, or `AUTOMATIC`. `capacity`: rows of a cache.

    Raises `UserError` if no state grows, or if the model computes with a cache in a way that no mask makes right.
    """
    proto = ModelProto.FromString(source.onnx_bytes)
    resolve_model(proto)
    stacks = split_stacks(proto, pairs, UniqueNames(proto.graph))
    pairs = split_pairs(stacks, pairs)
    inputs = read_decoder_inputs(proto, pairs, _split_shapes(stacks, fixed))
    if not inputs.states:
        inputs = append_written_rows(proto, inputs, pairs, capacity)
    require_states(inputs)
    step = _StepBuilder(proto, inputs, capacity, source.name).build()
    return replace(step, steps=replace(step.steps, stacks=stacks))


def _split_shapes(stacks: Sequence[StackedState], fixed: ModelInputs) -> ModelInputs:
    """Returns the shapes that the user gives, with those of parts in the places of stacks."""
    shapes = dict(fixed.shapes)
    for stack in stacks:
        if stack.input in shapes:
            shape = shapes.pop(stack.input)
            shapes |= {part.input: shape[1:] for part in stack.parts}
    return replace(fixed, shapes=shapes)


class _StepBuilder:
    """Builds the step. `last`, `before`: shapes at the last position and at the one before.

    Caches of fixed size have the same shapes at both; then `before` is what the shapes would be with a row less.
    `by_rows`: tensors that have a value for each row of such a cache, though nothing computes them from one.
    """

    def __init__(self, proto: ModelProto, inputs: DecoderInputs, capacity: int, name: str) -> None:
        self.proto, self.inputs, self.capacity, self.name = proto, inputs, capacity, name
        self.names = UniqueNames(proto.graph)
        self.position = self.names.unique_tensor(_POSITION)
        self.is_fixed = inputs.states[0].rows is not None
        self.by_rows = set[str]()
        if self.is_fixed:
            (self.last,) = measure_shapes(proto, inputs, (capacity - 1,))
            self.before = self._shapes_with_a_row_less()
        else:
            self.last, self.before = measure_shapes(proto, inputs, (capacity - 1, capacity - 2))
        move_factors(proto, self.names, self.last, self.before)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.masks: dict[tuple[int, int, int, int], _PositionTable] = {}
        self.read_as: dict[str, str] = {}

    def build(self) -> StepModel:
        known = classify_tensors(self.proto, self.inputs.shapes, self.inputs.derived)
        data = self._nodes_of_data(known)
        self._check_appends(data)
        reads = self._frontier(data, known)
        values = compute_by_position(self.proto, sorted(reads), self.inputs, self.capacity) | self._constants_by_rows()
        appends = {node.output[0]: state for state, node in self.inputs.appends.items()}
        zeros = {n for n, found in values.items() if not any(a.any() for a in found)} | self._zero_weights()
        growth = Growth(self.proto, self.last, self.before, zeros, complete=self.is_fixed)
        growth.follow([n for n in data if n.output[0] not in appends])
        self._check_outputs(growth, appends)
        fused = self._fused_masks(growth, data, values)
        tables = {name: self._table(name, found, growth, name in fused.values()) for name, found in values.items()}
        masks = growth.masked.keys() - fused.keys()
        states = {s.output: replace(s, permutation=self._stored_order(s, data, growth)) for s in self.inputs.states}
        for node in data:
            if node.output[0] in states:
                self._append(node, states[node.output[0]])
            else:
                self._copy(node, values, tables, growth, masks)
        derived = self.inputs.derived_inputs(self.capacity - 1)
        grown = tuple(dict.fromkeys(node.name or node.output[0] for node in self.nodes if self._grows(node, growth)))
        steps = DecoderSteps(self.capacity, self.position, tuple(states.values()), derived, cache_nodes=grown)
        return StepModel(self._model(tables, steps.states), steps)

    def _nodes_of_data(self, known: Mapping[str, Knowledge]) -> list[NodeProto]:
        return [n for n in self.proto.graph.node if any(known[o] == "data" for o in n.output if o)]

    def _shapes_with_a_row_less(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all tensors if the caches of fixed size had a row less."""
        known = classify_tensors(self.proto, self.inputs.shapes, self.inputs.derived)
        caches = {s.output: s.axis for s in self.inputs.states}
        axes = find_row_axes(self._nodes_of_data(known), self.last, known, caches, PARAMETER_INPUTS)
        self.by_rows = {name for name in axes if known.get(name) != "data"}
        shapes = {name: [*self.last[name]] for name in axes}
        for name, axis in axes.items():
            shapes[name][axis] -= 1
        return self.last | {name: tuple(shape) for name, shape in shapes.items()}

    def _constants_by_rows(self) -> dict[str, list[Array]]:
        """Returns the constants that have a value for each row of a cache of fixed size, at all positions."""
        weights = [t for t in self.proto.graph.initializer if t.name in self.by_rows]
        return {t.name: [numpy_helper.to_array(t)] * self.capacity for t in weights}

    def _grows(self, node: NodeProto, growth: Growth) -> bool:
        """Checks whether a node has a value for each row of a cache."""
        return any(growth.axis(name) is not None for name in (*node.input, *node.output))

    def _stored_order(self, state: GrowingState, data: Sequence[NodeProto], growth: Growth) -> tuple[int, ...]:
        """Returns the order of a state's axes: the axis that grows is the last one if products add up its rows."""
        rank, reached, summed = len(self.last[state.output]), {state.output}, False
        for node in data:
            read = [name for name in node.input if name in reached]
            if read and node.op_type == "MatMul":
                summed |= node.input[1] in read and growth.axis(node.input[1]) == len(self.last[node.input[1]]) - 2
            elif read:
                reached.update(o for o in node.output if growth.axis(o) is not None)
        order = list(range(rank))
        return (*(d for d in order if d != state.axis), state.axis) if summed else tuple(order)

    def _check_appends(self, data: Sequence[NodeProto]) -> None:
        """Checks that each state gets one row, and that nothing else reads it before that."""
        for state in self.inputs.states:
            added = self.last[state.output][state.axis] - (state.rows or self.capacity) + 1
            if added != 1:
                raise UserError(f"{state.output}: a step appends {added} rows, where a step takes one token")
            others = [
                n for n in data if state.input in n.input and n.output[0] != state.output and n.op_type != "Shape"
            ]
            if others:
                label = others[0].name or others[0].output[0]
                raise UserError(f"{label} ({others[0].op_type}): reads {state.input} before its new row is appended")

    def _frontier(self, data: Sequence[NodeProto], known: Mapping[str, Knowledge]) -> set[str]:
        """Returns the tensors that the position determines and others read, or that the model returns."""
        read = {name for node in data for name in find_reads(node)} | {v.name for v in self.proto.graph.output}
        return {name for name in read if known.get(name) == "position"} - set(self.inputs.derived)

    def _zero_weights(self) -> set[str]:
        return {t.name for t in self.proto.graph.initializer if not numpy_helper.to_array(t).any()}

    def _check_outputs(self, growth: Growth, appends: Mapping[str, str]) -> None:
        for value in self.proto.graph.output:
            if value.name not in appends and growth.axis(value.name) is not None:
                raise UserError(f"output {value.name} grows with every step, and is no state")

    def _fused_masks(
        self, growth: Growth, data: Sequence[NodeProto], values: Mapping[str, list[Array]]
    ) -> dict[str, str]:
        """Returns softmaxes that need no further mask, each with a table that is added to scores of softmaxes alone."""
        makers = {o: node for node in data for o in node.output}
        found: dict[str, str] = {}
        taken = {name for node in data for name in node.input if node.op_type != "Add"}
        for node in data:
            maker = makers.get(node.input[0]) if node.output[0] in growth.masked else None
            if maker is None or maker.op_type != "Add":
                continue
            for name in maker.input:
                axis, made = growth.axis(name) if name in values else None, len(self.last[maker.output[0]])
                shift = made - len(self.last[name]) if name in self.last else 0
                if axis is not None and name not in taken and axis + shift == growth.masked[node.output[0]]:
                    found[node.output[0]] = name
        tables = {*found.values()}
        alone = {n for n in tables if all(self._feeds_softmax(u, growth) for u in data if n in u.input)}
        return {softmax: name for softmax, name in found.items() if name in alone}

    def _feeds_softmax(self, node: NodeProto, growth: Growth) -> bool:
        readers = [n for n in self.proto.graph.node if node.output[0] in n.input]
        return bool(readers) and all(n.output[0] in growth.masked for n in readers)

    def _table(self, name: str, found: Sequence[Array], growth: Growth, masks: bool) -> "str | _PositionTable":
        """Returns the value at each position, in the shape at the last one; a constant if it is always the same."""
        shape, dtype = found[-1].shape, found[-1].dtype
        fill = MASKED if masks else 0
        rows = np.full((self.capacity, *shape), fill, dtype)
        for k, array in enumerate(found):
            if array.ndim != len(shape) or any(a > b for a, b in zip(array.shape, shape, strict=True)):
                raise UserError(f"tensor {name}: its shape {list(array.shape)} at position {k} is not {list(shape)}")
            ends = (slice(b - a, b) for a, b in zip(array.shape, shape, strict=True))
            rows[(k, *ends)] = self._turn(array, k, growth.axis(name))
        if masks:
            rows = np.maximum(rows, dtype.type(MASKED))
        if (rows == rows[:1]).all():
            return self._constant(rows[0], name)
        return self._position_table(rows, name)

    def _turn(self, array: Array, position: int, axis: int | None) -> Array:
        """Returns values for the rows of a cache of fixed size in the order of the window, the newest row last.

        Numbers that are minus infinity, such as masks, become `MASKED`.
        """
        if not self.is_fixed or axis is None:
            return array
        turned = np.roll(array, -(position + 1), axis)
        return np.where(np.isneginf(turned), array.dtype.type(MASKED), turned) if array.dtype.kind == "f" else turned

    def _constant(self, values: Array, stem: str) -> str:
        name = self.names.unique_tensor(f"{stem}.at_step")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def _position_table(self, rows: Array, stem: str) -> "_PositionTable":
        """Adds a table [capacity, ...] of the values at all positions."""
        table = self._constant(rows.reshape(self.capacity, -1), stem)
        return _PositionTable(table, self._constant(np.array(rows.shape[1:], np.int64), stem), stem)

    def _at_position(self, table: "str | _PositionTable") -> str:
        """Adds the row of the position, and returns it. Each reader has its own, so that none waits for another."""
        if isinstance(table, str):
            return table
        row = self._add("Gather", [table.rows, self.position], table.stem, axis=0)
        return self._add("Reshape", [row, table.shape], table.stem)

    def _add(self, op_type: str, inputs: Sequence[str], stem: str, **attributes: Any) -> str:
        name = self.names.unique_tensor(f"{stem}.at_step")
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def _mask(self, length: int, axis: int, rank: int, lead: int) -> "_PositionTable":
        """Returns the mask of an axis: `MASKED` for rows after the first `lead` elements that no step has appended."""
        key = (length, axis, rank, lead)
        if key not in self.masks:
            place, absent = np.arange(length) - lead, self.capacity - 1 - np.arange(self.capacity)[:, None]
            rows = np.where((place >= 0) & (place < absent), np.float32(MASKED), np.float32(0))
            self.masks[key] = self._position_table(rows.reshape(-1, *_along(length, axis, rank)), "mask")
        return self.masks[key]

    def _append(self, node: NodeProto, state: GrowingState) -> None:
        """Adds nodes that move a state by a row and put the new row at its end. Its readers get the model's order."""
        new, order, name = node.input[1], state.permutation, state.output
        in_order = order == tuple(range(len(order)))
        if not in_order:
            new = self._add("Transpose", [new], new, perm=list(order))
        ends = [self._constant(np.array([n], np.int64), name) for n in (1, 2**31 - 1, state.stored_axis)]
        kept = self._add("Slice", [state.input, *ends], name)
        self.nodes.append(helper.make_node("Concat", [kept, new], [name], name=node.name, axis=state.stored_axis))
        if not in_order:
            self.read_as[name] = self._add("Transpose", [name], name, perm=[order.index(d) for d in range(len(order))])

    def _copy(
        self,
        node: NodeProto,
        values: Mapping[str, list[Array]],
        tables: "Mapping[str, str | _PositionTable]",
        growth: Growth,
        masks: Collection[str],
    ) -> None:
        """Adds a node of the model, with tables in place of what the position determines."""
        copy = NodeProto()
        copy.CopyFrom(node)
        parameters = PARAMETER_INPUTS.get(node.op_type, ())
        for k, name in enumerate(node.input):
            if name in values:
                copy.input[k] = (
                    self._constant(values[name][-1], name) if k in parameters else self._at_position(tables[name])
                )
            elif name in self.read_as:
                copy.input[k] = self.read_as[name]
        name = node.output[0]
        if name in masks:
            x, axis = node.input[0], growth.masked[name]
            mask = self._mask(self.last[x][axis], axis, len(self.last[x]), growth.lead.get(x, 0))
            copy.input[0] = self._add("Add", [copy.input[0], self._at_position(mask)], x)
        self.nodes.append(copy)

    def _model(self, tables: "Mapping[str, str | _PositionTable]", states: Sequence[GrowingState]) -> SourceModel:
        """Returns the step as a model with static shapes."""
        # A branch without an encoder returns caches of no element in place of the encoder's.
        outputs = [v.name for v in self.proto.graph.output if 0 not in self.last[v.name]]
        self.nodes += [
            helper.make_node("Identity", [self._at_position(tables[n])], [n], name=n) for n in outputs if n in tables
        ]
        made = {o for n in self.nodes for o in n.output}
        kept = [n for n in self.proto.graph.node if n.op_type == "Constant" and n.output[0] not in made]
        nodes = [*_constants_first(self.proto, made, kept), *self.nodes]
        read = {name for node in nodes for name in find_reads(node)}
        weights = [t for t in (*self.proto.graph.initializer, *self.constants) if t.name in read]
        step = copy_header(self.proto)
        step.graph.node.extend(nodes)
        step.graph.initializer.extend(weights)
        types = {v.name: v.type.tensor_type.elem_type for v in (*self.proto.graph.input, *self.proto.graph.output)}
        stored = {s.output: tuple(self.last[s.output][d] for d in s.permutation) for s in states}
        caches = {s.input: stored[s.output] for s in states}
        own = [n for n in self.inputs.shapes if n not in self.inputs.derived]
        for name in own:
            shape = caches.get(name, self.inputs.shapes[name])
            step.graph.input.append(helper.make_tensor_value_info(name, types[name], shape))
        step.graph.input.append(helper.make_tensor_value_info(self.position, TensorProto.INT64, [1]))
        for name in outputs:
            step.graph.output.append(
                helper.make_tensor_value_info(name, types[name], stored.get(name, self.last[name]))
            )
        return read_proto(step, self.name)


@dataclass(frozen=True, slots=True)
class _PositionTable:
    """Values that the position determines: constants with a row of `rows` for each, and with the `shape` of a row."""

    rows: str
    shape: str
    stem: str


def _constants_first(proto: ModelProto, made: set[str], kept: Sequence[NodeProto]) -> list[NodeProto]:
    """Returns the nodes of a model that compute constants, which later nodes may read."""
    fixed = {t.name for t in proto.graph.initializer} | {n.output[0] for n in kept}
    found = list(kept)
    for node in proto.graph.node:
        if node.output[0] not in made | fixed and fixed.issuperset(find_reads(node)) and node.input:
            found.append(node)
            fixed.update(node.output)
    return found


def _along(length: int, axis: int, rank: int) -> list[int]:
    return [length if d == axis else 1 for d in range(rank)]
