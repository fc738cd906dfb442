"""Reads PimIR from MLIR text of the dialect `pim`, as `raptor.mlir.pim_writer` writes it.

Every operation is checked with the table of the dialect, every parameter with the annotation of its field. The first
wrong place raises `MlirError`. Names of values in the text have no meaning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raptor.common.errors import VerifyError
from raptor.common.mlir.reader import MlirOp
from raptor.common.mlir.syntax import MlirError, MlirType
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.mlir.checks import (
    FAULTS,
    MOST_ELEMENTS,
    check_header,
    check_op,
    check_symbol,
    check_window,
    decode_operation,
    find_node,
    read_element,
    read_shape,
)
from raptor.mlir.dialect import step_classes
from raptor.mlir.records import RecordDecoder
from raptor.pim.ir import ArrayGroup, CoreProgram, PimProgram, TensorTrace
from raptor.pim.operations import Buffer, LoadRows, Repeat
from raptor.pim.step_columns import (
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    TRANSFERS,
    WHOLE_BUFFER,
    BufferTable,
    FormTable,
    Ints,
    OperationForm,
    StepColumns,
)
from raptor.pim.verify_pim import PimError
from raptor.spatial.verification.verify_types import find_operation_fault
from raptor.target.chip_elements import ElementCoding, ElementType
from raptor.target.tensor_layout import Image, TensorRegion

_TRANSFER_FORMS = {"pim.load": LOAD, "pim.store": STORE, "pim.channel_send": SEND, "pim.channel_receive": RECEIVE}


@dataclass(frozen=True, slots=True, eq=False)
class PimModule:
    """A program that was read, and the places of its parts in the text, as positions of characters.

    made_by: name of the pass that returned it. source: digest of the text that RAPTOR wrote. steps: for each core, the
    place of each of `all_steps`. forms: of each form. cores: of each core. groups: of each group of a core. traces: of
    each trace.
    """

    program: PimProgram
    made_by: str
    source: str
    steps: Mapping[int, Ints]
    forms: Ints
    cores: Mapping[int, int]
    groups: Mapping[int, tuple[int, ...]]
    traces: tuple[int, ...]
    position: int = 0

    def resolve(self, own: Any) -> PimProgram:
        """Returns the program, which takes the place of `own`. Raises `MlirError` unless it is of the same model.

        Matrices must be those of the mapping, since the values of weights come from there, and tensors those of the
        model; only the places where they are observed may differ.
        """
        if not isinstance(own, PimProgram):
            raise MlirError(self.position, f"{self.made_by} returns no program of the dialect pim")
        known = {group for core in own.cores.values() for group in core.groups}
        for number, core in self.program.cores.items():
            for group, place in zip(core.groups, self.groups[number], strict=True):
                if group not in known:
                    raise MlirError(place, f"the mapping of {group.layer!r} has no such matrix")
        nodes = {node for core in own.cores.values() for node in core.steps.nodes}
        for number, core in self.program.cores.items():
            unknown = np.array([node not in nodes for node in core.steps.nodes], np.bool_)
            for step in np.flatnonzero(unknown[core.all_steps.node])[:1].tolist():
                raise MlirError(int(self.steps[number][step]), "its location is no ONNX node that the program has")
        wanted = {trace.tensor: _content(trace) for trace in own.traces}
        for trace, place in zip(self.program.traces, self.traces, strict=True):
            if wanted.pop(trace.tensor, None) != _content(trace):
                raise MlirError(place, f"the tensor {trace.tensor!r} is another one in the model")
        for name in wanted:
            raise MlirError(self.position, f"the tensor {name!r} of the model is missing")
        return self.program

    def place_of(self, error: VerifyError) -> int:
        """Returns the place of the step, form or core in which the verifier found an error."""
        if not isinstance(error, PimError):
            return self.position
        if error.form is not None:
            return int(self.forms[error.form])
        if error.core is None:
            return self.position
        return self.cores[error.core] if error.step is None else int(self.steps[error.core][error.step])


def _content(trace: TensorTrace) -> tuple[object, ...]:
    return trace.node, trace.image, trace.regions, trace.element, trace.coding


def read_pim_module(module: MlirOp) -> PimModule:
    """Returns the program of a module that is parsed. Raises `MlirError` at the first place that is wrong."""
    made_by, source, modelled = check_header(module, "pim")
    reader = _PimReader(modelled)
    for op in module.regions[0]:
        reader.top(op)
    return reader.finish(module, made_by, source)


@dataclass(slots=True)
class _CoreRows:
    """Content of a core while it is read: buffers by name in the text, and a row for each step.

    init_count: number of steps before `pim.init`; None without it. probed: whether there was a probe.
    """

    op: MlirOp
    buffers: dict[str, int] = field(default_factory=dict[str, int])
    values: list[Buffer] = field(default_factory=list[Buffer])
    types: list[MlirType] = field(default_factory=list[MlirType])
    addresses: list[int | None] = field(default_factory=list[int | None])
    groups: list[ArrayGroup] = field(default_factory=list[ArrayGroup])
    group_places: list[int] = field(default_factory=list[int])
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int, int]])
    used: list[int] = field(default_factory=list[int])
    start: list[int] = field(default_factory=lambda: [0])
    places: list[int] = field(default_factory=list[int])
    states: list[int] = field(default_factory=list[int])
    init_count: int | None = None
    probed: bool = False
    halted: bool = False


@dataclass(slots=True)
class _Trace:
    """A tensor that was read, and the core and the step of each of its regions so far; -1 for none."""

    op: MlirOp
    trace: TensorTrace


@dataclass(slots=True)
class _PimReader:
    """Collects the parts of a program. modelled: see `RecordDecoder`. checked: attributes that are right."""

    modelled: bool
    forms: list[OperationForm] = field(default_factory=lambda: list(TRANSFERS))
    form_numbers: dict[str, int] = field(default_factory=dict[str, int])
    form_places: list[int] = field(default_factory=lambda: [0] * len(TRANSFERS))
    form_names: list[str] = field(default_factory=lambda: [""] * len(TRANSFERS))
    nodes: dict[str, int] = field(default_factory=dict[str, int])
    traces: dict[str, _Trace] = field(default_factory=dict[str, _Trace])
    cores: dict[int, _CoreRows] = field(default_factory=dict[int, _CoreRows])
    checked: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])

    def top(self, op: MlirOp) -> None:
        """Reads an operation of the module."""
        reads: Mapping[str, Callable[[MlirOp], None]] = {
            "pim.tensor": self.tensor,
            "pim.form": self.form,
            "pim.core": self.core,
        }
        if op.name not in reads:
            raise MlirError(op.position, f"{op.name}: expected pim.tensor, pim.form or pim.core in a module")
        check_op(op, self.checked)
        reads[op.name](op)

    # The module

    def tensor(self, op: MlirOp) -> None:
        found, decoder = op.attributes, RecordDecoder(self.modelled)
        name = check_symbol(op, self.traces, self.form_numbers)
        try:
            image = decoder.decode(found["image"], Image)
            table = decoder.decode(found["parts"], np.ndarray[Any, np.dtype[np.int64]])
            element = decoder.decode(found["element"], ElementType)
            coding = decoder.decode(found["coding"], ElementCoding) if "coding" in found else None
        except ValueError as e:
            raise MlirError(op.position, f"pim.tensor: {e}") from None
        if table.ndim != 2 or table.shape[1] != 6:
            raise MlirError(op.position, "pim.tensor: parts are rows of six numbers")
        regions = [TensorRegion((a, b), (c, d), None if e < 0 else (e, f)) for a, b, c, d, e, f in table.tolist()]
        none = np.full(len(regions), -1)
        trace = TensorTrace(found["name"], find_node(op), image, tuple(regions), none, none.copy(), element, coding)
        self.traces[name] = _Trace(op, trace)

    def form(self, op: MlirOp) -> None:
        found = op.attributes
        name = check_symbol(op, self.traces, self.form_numbers)
        known = step_classes().get(found["kind"])
        if known is None:
            raise MlirError(op.position, f"pim.form: {found['kind']!r} is no operation with forms")
        shapes = [read_shape(op, type_, "memref", modelled=self.modelled) for type_ in found["slots"]]
        slots = [Buffer(f"{number}", *shape) for number, shape in enumerate(shapes)]
        try:
            form = self.form_of(known, found["parameters"], slots, found.get("weight_bits", 0))
        except FAULTS as e:
            raise MlirError(op.position, f"pim.form: parameters: {e}") from None
        self.form_numbers[name] = len(self.forms)
        self.forms.append(form)
        self.form_places.append(op.position)
        self.form_names.append(f"pim.{found['kind']}")

    def form_of(
        self, known: tuple[type[Any], str | None], parameters: Any, slots: list[Buffer], weight_bits: int
    ) -> OperationForm:
        """Returns a form. Raises an error of `FAULTS` if operation, parameters and slots do not match."""
        operation = decode_operation(known, parameters, slots, self.modelled)
        check_window(getattr(operation, "window", None))
        form = OperationForm.from_operation(operation, weight_bits)
        shapes = [[(s.rows, s.width, s.channels, s.element) for s in each] for each in (form.slots, slots)]
        named = [slot.name for slot in form.slots[: form.operands + form.results]]
        if shapes[0] != shapes[1] or named != [f"{i}" for i in range(len(named))]:
            wanted = ", ".join(f"{s.rows}x{s.width}x{s.channels}x{s.element}" for s in form.slots)
            raise ValueError(f"the slots of such an operation are {wanted}: operands, results, scratch")
        if not 0 <= weight_bits <= 64:
            raise ValueError(f"weights of {weight_bits} bits")
        fault = find_operation_fault(operation) if known[0] not in (LoadRows, Repeat) else None
        if fault is not None:
            raise ValueError(fault)
        return form

    # A core

    def core(self, op: MlirOp) -> None:
        number, local = op.attributes["coreId"], op.attributes.get("localBytes", 0)
        if number in self.cores:
            raise MlirError(op.position, f"pim.core: core {number} is defined twice")
        if number < 0 or local < 0:
            raise MlirError(op.position, "pim.core: a negative number")
        rows = self.cores[number] = _CoreRows(op)
        for each in op.regions[0]:
            if rows.halted:
                raise MlirError(each.position, f"{each.name} is behind pim.halt")
            check_op(each, self.checked)
            if each.name in _TRANSFER_FORMS:
                self.transfer(rows, each)
            elif "form" in each.attributes:
                self.step(rows, each)
            else:
                self.other(rows, each, number)
        if not rows.halted:
            raise MlirError(op.position, f"pim.core: core {number} does not end with pim.halt")

    def other(self, rows: _CoreRows, op: MlirOp, core: int) -> None:
        match op.name:
            case "pim.alloc":
                self.alloc(rows, op)
            case "pim.group":
                self.group(rows, op)
            case "pim.probe":
                self.probe(rows, op, core)
            case "pim.state":
                rows.states += self.buffers(rows, op)
            case "pim.init":
                if rows.init_count is not None or rows.probed:
                    raise MlirError(op.position, "pim.init: there is another one, or a probe, before it")
                rows.init_count = len(rows.rows)
            case "pim.halt":
                rows.halted = True
            case _:
                raise MlirError(op.position, f"{op.name}: not in a core")

    def alloc(self, rows: _CoreRows, op: MlirOp) -> None:
        (type_,) = op.result_types
        if type_.kind != "memref" or len(type_.shape) != 1 or not 0 < type_.shape[0] <= MOST_ELEMENTS:
            raise MlirError(op.position, f"pim.alloc: {type_} is no memref of 1 to {MOST_ELEMENTS} elements")
        (name,) = op.results
        if name in rows.buffers:
            raise MlirError(op.position, f"%{name} is defined twice")
        element = read_element(op, type_.element, modelled=self.modelled)
        rows.buffers[name] = len(rows.values)
        rows.values.append(Buffer(op.attributes.get("name", name), 1, 1, type_.shape[0], element))
        rows.types.append(type_)
        rows.addresses.append(op.attributes.get("address"))

    def group(self, rows: _CoreRows, op: MlirOp) -> None:
        found = op.attributes
        try:
            matrix = RecordDecoder(self.modelled).decode(found["matrix"], Matrix | LineMatrix)
            group = ArrayGroup(found["layer"], matrix, found.get("weight_bits", 0))
            shape = matrix.rows[1] - matrix.rows[0], matrix.cols[1] - matrix.cols[0]
        except FAULTS as e:
            raise MlirError(op.position, f"pim.group: matrix: {e}") from None
        if found["weights"].type.shape != shape:
            raise MlirError(op.position, f"pim.group: weights are {found['weights'].type}, the matrix has {shape}")
        rows.groups.append(group)
        rows.group_places.append(op.position)

    def probe(self, rows: _CoreRows, op: MlirOp, core: int) -> None:
        name, part = op.attributes["tensor"].name, op.attributes["part"]
        known = self.traces.get(name)
        if known is None:
            raise MlirError(op.position, f"pim.probe: no pim.tensor @{name} before it")
        trace = known.trace
        if not 0 <= part < len(trace.regions):
            raise MlirError(op.position, f"pim.probe: part {part} of {len(trace.regions)}")
        if trace.core[part] >= 0:
            raise MlirError(op.position, f"pim.probe: part {part} of {trace.tensor} has two probes")
        (buffer,) = self.buffers(rows, op)
        once = rows.init_count or 0
        last = rows.rows[-1][0] if len(rows.rows) > once else STORE
        form = self.forms[last]
        written = rows.used[rows.start[-2] + form.operands] if form.results else -1
        if buffer != written:
            raise MlirError(op.position, "pim.probe: the step before it does not write its buffer")
        trace.core[part], trace.step[part], rows.probed = core, len(rows.rows) - once, True

    def buffers(self, rows: _CoreRows, op: MlirOp) -> list[int]:
        """Returns the numbers of the operands, whose types must be those of their allocations."""
        numbers: list[int] = []
        for name, type_ in zip(op.operands, op.operand_types, strict=True):
            number = rows.buffers.get(name)
            if number is None:
                raise MlirError(op.position, f"%{name} is used before it is defined")
            if rows.types[number] != type_:
                raise MlirError(op.position, f"%{name} is {rows.types[number]}, not {type_}")
            numbers.append(number)
        return numbers

    def transfer(self, rows: _CoreRows, op: MlirOp) -> None:
        found, (buffer,) = op.attributes, self.buffers(rows, op)
        number = next(found[name] for name in ("globalSrc", "globalDst", "channel") if name in found)
        first, count = WHOLE_BUFFER, 0
        if "span" in found:
            span = found["span"].tolist()
            elements = rows.values[buffer].elements
            if len(span) != 2 or not (0 <= span[0] < sum(span) <= elements):
                raise MlirError(op.position, f"{op.name}: span {span} of {elements} elements")
            first, count = span
        if number < 0 or found.get("core", 0) < 0:
            raise MlirError(op.position, f"{op.name}: a negative number")
        self.row(rows, op, (_TRANSFER_FORMS[op.name], number, found.get("core", 0), first, count), [buffer])

    def step(self, rows: _CoreRows, op: MlirOp) -> None:
        name, shift = op.attributes["form"].name, op.attributes.get("shift", 0)
        number = self.form_numbers.get(name)
        if number is None:
            raise MlirError(op.position, f"{op.name}: no pim.form @{name} before it")
        form = self.forms[number]
        if op.name != self.form_names[number]:
            raise MlirError(op.position, f"{op.name}: @{name} is a form of {self.form_names[number]}")
        used = self.buffers(rows, op)
        if len(used) != len(form.slots):
            raise MlirError(op.position, f"{op.name}: {len(used)} buffers for the {len(form.slots)} slots of @{name}")
        for buffer, slot in zip(used, form.slots, strict=True):
            value = rows.values[buffer]
            if value.elements != slot.elements or value.element != slot.element:
                shape = f"{slot.rows}x{slot.width}x{slot.channels} {slot.element}"
                raise MlirError(op.position, f"{op.name}: {rows.types[buffer]} for a slot of {shape}")
        if shift < 0 or (shift and not form.operation.matrices):
            raise MlirError(op.position, f"{op.name}: shift {shift} of no matrix")
        self.row(rows, op, (number, shift, 0, WHOLE_BUFFER, 0), used)

    def row(self, rows: _CoreRows, op: MlirOp, row: tuple[int, int, int, int, int], used: Sequence[int]) -> None:
        node = self.nodes.setdefault(find_node(op), len(self.nodes))
        rows.rows.append((*row, node))
        rows.used += used
        rows.start.append(len(rows.used))
        rows.places.append(op.position)

    # The program

    def finish(self, module: MlirOp, made_by: str, source: str) -> PimModule:
        for known in self.traces.values():
            if (known.trace.core < 0).any():
                part = int(np.argmax(known.trace.core < 0))
                raise MlirError(known.op.position, f"pim.tensor: part {part} has no probe")
        forms, nodes = FormTable(tuple(self.forms)), tuple(self.nodes)
        cores = {number: _core_program(number, rows, forms, nodes) for number, rows in self.cores.items()}
        addressed = {core.addresses is not None for core in cores.values() if len(core.steps.buffers)}
        if len(addressed) > 1:
            raise MlirError(module.position, "some buffers have addresses, others have none")
        name = module.attributes.get("sym_name", "")
        if not isinstance(name, str):
            raise MlirError(module.position, "the name of the module is no string")
        channels = sum(int((core.steps.form == SEND).sum()) for core in cores.values())
        traces = tuple(known.trace for known in self.traces.values())
        return PimModule(
            PimProgram(name, cores, channels, traces),
            made_by,
            source,
            {number: np.array(rows.places, np.int64) for number, rows in self.cores.items()},
            np.array(self.form_places, np.int64),
            {number: rows.op.position for number, rows in self.cores.items()},
            {number: tuple(rows.group_places) for number, rows in self.cores.items()},
            tuple(known.op.position for known in self.traces.values()),
            module.position,
        )


def _core_program(number: int, rows: _CoreRows, forms: FormTable, nodes: tuple[str, ...]) -> CoreProgram:
    form, step_number, peer, first, count, node = np.array(rows.rows, np.int64).reshape(-1, 6).T
    steps = StepColumns(
        forms,
        nodes,
        BufferTable(tuple(rows.values)),
        form,
        node,
        step_number,
        peer,
        np.stack([first, count], axis=1),
        np.array(rows.start, np.int64),
        np.array(rows.used, np.int64),
    )
    local, addresses = rows.op.attributes.get("localBytes"), rows.addresses
    given = [address for address in addresses if address is not None]
    if given and (len(given) < len(addresses) or local is None):
        raise MlirError(rows.op.position, f"pim.core: core {number} has buffers with addresses and others without")
    init, once = None, rows.init_count
    if once is not None:
        init, steps = steps.select(np.arange(once)), steps.select(np.arange(once, len(steps)))
    addressed = None if local is None else np.array(given, np.int64)
    states = np.array(rows.states, np.int64)
    return CoreProgram(number, tuple(rows.groups), steps, addressed, local or 0, init, states)
