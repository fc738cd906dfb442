"""The operations of a core as columns: a row per step, an object per form.

Most operations repeat another one on other buffers (the same products on another line of an image). The common part is
their `OperationForm`. Buffers are numbers, so that a pass processes all steps of a core at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import structs

from raptor.pim.operations import Buffer, Load, Receive, Send, Span, Store
from raptor.spatial.operations import Operation
from raptor.spatial.tiles import ShapedValue
from raptor.target.arch import Target
from raptor.target.chip_elements import ElementType

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

WHOLE_BUFFER = -1
"""Entry of `Steps.span` for a transfer of the whole buffer."""
OPERAND, RESULT, SCRATCH = range(3)
"""Roles of a buffer in an operation."""


@dataclass(frozen=True, slots=True)
class PimStep:
    """An operation, and the ONNX node that it belongs to."""

    operation: Operation[Buffer]
    node: str


@dataclass(frozen=True, slots=True, eq=False)
class OperationForm:
    """An operation on slots, which stand for buffers and have their shapes.

    slots: `operands` operands, then `results` results, then scratch. A transfer (`TRANSFERS`) works on buffers of any
    shape. weight_bits: of the matrices, see `Filter`.
    """

    operation: Operation[Buffer]
    slots: tuple[Buffer, ...]
    operands: int
    results: int
    weight_bits: int = 0

    @classmethod
    def from_operation(cls, operation: Operation[Buffer], weight_bits: int = 0) -> "OperationForm":
        """Makes the form of an operation whose buffers are slots."""
        operands = len(set(operation.operands))
        slots = tuple(dict.fromkeys(operation.touches))
        return cls(operation, slots, operands, len(operation.results), weight_bits)

    def on_buffers(self, buffers: Mapping[str, Buffer]) -> Operation[Buffer]:
        """Returns the operation on other buffers, by name of the slot. Slots give the shapes, buffers the names."""
        return self.operation.map_operands(lambda slot: structs.replace(slot, name=buffers[slot.name].name))


_ANY = Buffer("any", 1, 1, 1)
LOAD, STORE, SEND, RECEIVE = range(4)
"""Form numbers of transfers."""
TRANSFERS = tuple(
    map(OperationForm.from_operation, (Load(_ANY, 0), Store(_ANY, 0), Send(_ANY, 0, 0), Receive(_ANY, 0, 0)))
)
"""The first forms of every program."""


@dataclass(frozen=True, eq=False)
class FormTable:
    """The forms of a program, and their properties as columns with an entry per form or per slot."""

    forms: tuple[OperationForm, ...] = TRANSFERS

    @cached_property
    def counts(self) -> Ints:
        """[forms, 3]: number of operands, of operands and results, and of all slots."""
        rows = [(form.operands, form.operands + form.results, len(form.slots)) for form in self.forms]
        return np.array(rows, np.int64).reshape(-1, 3)

    @cached_property
    def first(self) -> Ints:
        """Offset of each form's slots in the concatenated slots of all forms."""
        return np.cumsum(self.counts[:, 2]) - self.counts[:, 2]

    @cached_property
    def elements(self) -> Ints:
        """[slots, 2]: number of elements and type (see `encode_type`) of each slot."""
        return _elements([slot for form in self.forms for slot in form.slots])

    @cached_property
    def classes(self) -> tuple[type[Operation[Buffer]], ...]:
        """The class of the operation of each form."""
        return tuple([type(form.operation) for form in self.forms])

    @cached_property
    def by_class(self) -> Mapping[type[Operation[Buffer]], list[int]]:
        """The numbers of the forms of each operation class."""
        by_class: dict[type[Operation[Buffer]], list[int]] = {}
        for number, kind in enumerate(self.classes):
            by_class.setdefault(kind, []).append(number)
        return by_class

    def of_class(self, *kinds: type[Operation[Buffer]]) -> Bools:
        """Returns, for each form, whether its operation is an instance of one of these classes."""
        is_instance = np.zeros(len(self.forms), np.bool_)
        for kind, numbers in self.by_class.items():
            if issubclass(kind, kinds):
                is_instance[numbers] = True
        return is_instance


@dataclass(frozen=True, eq=False)
class BufferTable:
    """The buffers of a core, by number."""

    values: tuple[ShapedValue, ...]

    def __len__(self) -> int:
        return len(self.values)

    def name(self, number: int | np.integer) -> str:
        return self.values[int(number)].name

    @cached_property
    def elements(self) -> Ints:
        """[buffers, 2]: number of elements and type (see `encode_type`) of each buffer."""
        return _elements(self.values)

    def sizes(self, arch: Target) -> Ints:
        """Returns the bytes of each buffer."""
        count, kind = self.elements.T
        return count * bytes_of_types(kind, arch)


@dataclass(frozen=True, slots=True, eq=False)
class BufferUses:
    """All uses of buffers by the steps of a core, in order, as columns.

    step, buffer: their numbers. role: `OPERAND`, `RESULT` or `SCRATCH`. elements: [uses, 2], number of elements and
    type (see `encode_type`) as the operation sees them.
    """

    step: Ints
    buffer: Ints
    role: Ints
    elements: Ints

    def first(self, count: int) -> Ints:
        """Returns the first step that uses each of `count` buffers; -1 for unused buffers."""
        first = np.full(count, -1)
        first[self.buffer[::-1]] = self.step[::-1]
        return first

    def last(self, count: int) -> Ints:
        """Returns the last step that uses each of `count` buffers; -1 for unused buffers."""
        last = np.full(count, -1)
        last[self.buffer] = self.step  # the last assignment stays
        return last


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of a core.

    forms, nodes: tables of the whole program. buffers: of the core. form, node: form number and node number of each
    step. used: buffer numbers in the slots, step after step; step i begins at `start[i]`.

    number, peer, span complete the form. number: global address of a load or store, channel of a send or receive, else
    an offset for matrix numbers. peer: other core of a send or receive. span: [steps, 2], first element (`WHOLE_BUFFER`
    for all) and number of elements of a transfer."""

    forms: FormTable
    nodes: tuple[str, ...]
    buffers: BufferTable
    form: Ints
    node: Ints
    number: Ints
    peer: Ints
    span: Ints
    start: Ints
    used: Ints

    def __len__(self) -> int:
        return len(self.form)

    def __iter__(self) -> Iterator[PimStep]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> PimStep:
        """Returns one step as an object."""
        return PimStep(self.operation(i), self.nodes[int(self.node[i])])

    def operation(self, i: int) -> Operation[Buffer]:
        """Returns the operation of one step, on its buffers."""
        form, number = self.forms.forms[int(self.form[i])], int(self.number[i])
        used: list[int] = self.used[self.start[i] : self.start[i + 1]].tolist()
        buffers = [_buffer(self.buffers.values[k]) for k in used]
        first, elements = self.span[i].tolist()
        span: Span | None = None if first == WHOLE_BUFFER else (first, elements)
        match form.operation:
            case Load():
                return Load(buffers[0], number, span)
            case Store():
                return Store(buffers[0], number)
            case Send():
                return Send(buffers[0], int(self.peer[i]), number, span)
            case Receive():
                return Receive(buffers[0], int(self.peer[i]), number, span)
            case _:
                slots = {slot.name: buffer for slot, buffer in zip(form.slots, buffers, strict=True)}
                return form.on_buffers(slots).shift_matrices(number)

    def select(self, steps: Ints) -> "StepColumns":
        """Returns some steps, by their numbers, in the given order."""
        counts = np.diff(self.start)[steps]
        start = np.append(0, np.cumsum(counts))
        uses = np.arange(int(counts.sum())) + np.repeat(self.start[steps] - start[:-1], counts)
        columns = {name: getattr(self, name)[steps] for name in _COLUMNS}
        return replace(self, start=start, used=self.used[uses], **columns)

    def followed_by(self, other: "StepColumns") -> "StepColumns":
        """Returns these steps and then those of `other`, which has the same tables."""
        columns = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _COLUMNS}
        start = np.concatenate([self.start, self.start[-1] + other.start[1:]])
        return replace(self, start=start, used=np.concatenate([self.used, other.used]), **columns)

    def results(self, steps: Ints) -> Ints:
        """Returns the buffer numbers of the results of some steps, which must have one result each."""
        return self.used[self.start[steps] + self.forms.counts[self.form[steps], 0]]

    def of_class(self, *kinds: type[Operation[Buffer]]) -> Ints:
        """Returns the numbers of the steps whose operation is an instance of one of these classes."""
        return np.flatnonzero(self.forms.of_class(*kinds)[self.form])

    def uses(self) -> BufferUses:
        """Returns all uses of buffers, in order."""
        step = np.repeat(np.arange(len(self)), np.diff(self.start))
        form, place = self.form[step], np.arange(len(self.used)) - self.start[step]
        role = (place[:, None] >= self.forms.counts[form, :2]).sum(axis=1)
        seen = self.forms.elements[self.forms.first[form] + place]
        elements = np.where((form < len(TRANSFERS))[:, None], self.buffers.elements[self.used], seen)
        return BufferUses(step, self.used, role, elements)


_COLUMNS = ("form", "node", "number", "peer", "span")
"""The columns of `StepColumns` that have a row for each step."""


def encode_type(element: ElementType) -> int:
    """Returns the encoding of an element type: twice its bits, plus 1 for a float."""
    return 2 * element.bits + (element.kind == "float")


def bytes_of_types(numbers: Ints, arch: Target) -> Ints:
    """Returns the bytes of an element of each type; see `encode_type`."""
    return -(-np.where(numbers < 2, arch.element_bits, numbers // 2) // 8)


def _elements(values: Sequence[ShapedValue]) -> Ints:
    return np.array([(value.elements, encode_type(value.element)) for value in values], np.int64).reshape(-1, 2)


def _buffer(value: ShapedValue) -> Buffer:
    return Buffer(value.name, value.rows, value.width, value.channels, value.element)
