"""Table of the forms of a program while it is lowered, and the origin of the buffers in the slots of each form."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from raptor.graph.ir import Filter
from raptor.pim.operations import Buffer, make_slot
from raptor.pim.step_columns import TRANSFERS, OperationForm
from raptor.spatial.compute_op import BodyOp
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import Operation
from raptor.spatial.repeated_operands import repeated_shape
from raptor.spatial.tiles import ConstantTile, Tile


@dataclass(frozen=True, slots=True)
class OperandSlot:
    """Origin of the buffer of one operand.

    constant, place: constant number `place` of the operation, or tile number `place` among `reads`. shape: shape of the
    buffer. repeated: whether each row of the buffer is filled with copies of a part of the operand (`Repeat`).
    """

    constant: bool
    place: int
    shape: Buffer
    repeated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FormSlots:
    """A form, and the origin of the buffers in its slots.

    operands: one entry per operand. scratch: for each scratch value, the suffix of its name after the name of the
    result, and its shape. plain: True if the operands are distinct tiles that are used as they are.
    """

    form: OperationForm
    operands: tuple[OperandSlot, ...]
    scratch: tuple[tuple[str, Buffer], ...]
    plain: bool

    @classmethod
    def from_operation(cls, op: BodyOp, weight_bits: int) -> "FormSlots":
        """Derives form and slots of an operation."""
        tiles = tuple(dict.fromkeys(op.operands))
        reads, constants = op.reads, [tile for tile in op.operands if isinstance(tile, ConstantTile)]
        operands = tuple(
            _slot(op, tile, i, constants.index(tile) if isinstance(tile, ConstantTile) else reads.index(tile))
            for i, tile in enumerate(tiles)
        )
        result = make_slot(op.result, len(tiles))
        shapes = {tile.name: slot.shape for tile, slot in zip(tiles, operands, strict=True)}
        form = OperationForm.from_operation(op.map_operands(lambda tile: shapes.get(tile.name, result)), weight_bits)
        scratch = form.slots[len(tiles) + 1 :]
        ends = tuple((value.name.removeprefix(result.name), value) for value in scratch)
        plain = len(tiles) == len(reads) and not any(slot.constant or slot.repeated for slot in operands)
        return cls(form, operands, ends, plain)


@dataclass(slots=True)
class FormCollector:
    """The forms so far. of_graph: number and slots of the graph's forms, without copies and embedding lookups.

    number: number of each form that the graph does not have.
    """

    forms: list[OperationForm] = field(default_factory=lambda: list(TRANSFERS))
    of_graph: dict[int, tuple[int, FormSlots]] = field(default_factory=dict[int, tuple[int, FormSlots]])
    number: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @classmethod
    def from_dataflow(cls, flow: Dataflow, filters: Mapping[str, Filter]) -> "FormCollector":
        """Derives the forms of a graph's operations. filters: by key of the layer."""
        kinds = cls()
        for number, (op, compute) in enumerate(flow.forms):
            if not isinstance(op, Copy | TakeRows):
                slots = FormSlots.from_operation(op, filters[compute.layer].weight_bits if compute.matrices else 0)
                kinds.of_graph[number] = kinds.add(slots.form), slots
        return kinds

    def add(self, form: OperationForm) -> int:
        """Adds a form. Returns its number."""
        self.forms.append(form)
        return len(self.forms) - 1

    def of_op(self, op: Operation[Buffer]) -> int:
        """Returns the number of the form of an operation on slots; equal operations share it."""
        key = op.form
        number = self.number.get(key)
        if number is None:
            number = self.number[key] = self.add(OperationForm.from_operation(op))
        return number


def _slot(op: BodyOp, tile: Tile, number: int, place: int) -> OperandSlot:
    constant, shape = isinstance(tile, ConstantTile), repeated_shape(op, tile)
    if shape is None:
        return OperandSlot(constant, place, make_slot(tile, number))
    return OperandSlot(constant, place, Buffer(f"{number}", *shape, tile.element), True)
