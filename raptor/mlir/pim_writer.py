"""Writes PimIR as MLIR text: dialect `pim`, generic form, one operation on a line (docs/reference/mlir.md)."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raptor.common.mlir.syntax import MlirType, ResourceHandle, quote, write_attribute
from raptor.mlir.records import element_name, to_attribute
from raptor.pim.ir import ArrayGroup, CoreProgram, PimProgram, TensorTrace
from raptor.pim.step_columns import (
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    TRANSFERS,
    WHOLE_BUFFER,
    OperationForm,
    StepColumns,
)
from raptor.spatial.operations import Gather, Operation
from raptor.spatial.tiles import ShapedValue
from raptor.target.chip_elements import MODELLED_FLOAT

VERSION = 1
"""Version of the dialects. It rises if the meaning of a text changes."""


def write_pim(program: PimProgram, made_by: str) -> str:
    """Returns a program as an MLIR module. made_by: name of the pass that returned it."""
    body = "\n".join(pim_body(program))
    return write_module("pim", program.name, made_by, body, modelled=uses_modelled_floats(program))


def write_module(dialect: str, name: str, made_by: str, body: str, *, modelled: bool) -> str:
    """Returns a module with this body. made_by: name of the pass. modelled: see `uses_modelled_floats`."""
    attributes = {
        "sym_name": name,
        f"{dialect}.version": VERSION,
        f"{dialect}.pass": made_by,
        f"{dialect}.source": text_digest(body),
        f"{dialect}.floats": "modelled" if modelled else "float32",
    }
    return f'"builtin.module"() ({{\n{body}\n}}) {write_attribute(attributes)} : () -> ()\n'


def text_digest(body: str) -> str:
    """Returns a digest of the body of a module: equal model, chip, options and version give an equal one."""
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def uses_modelled_floats(program: PimProgram) -> bool:
    """True if the floats of a program have the width of the target (`MODELLED_FLOAT`); those of a mixed one are 32."""
    values = (value for core in program.cores.values() for value in core.steps.buffers.values)
    return next((value.element == MODELLED_FLOAT for value in values if value.element.kind == "float"), True)


def pim_body(program: PimProgram) -> Iterator[str]:
    """Yields the lines of a module: tensors, forms, and the program of each core."""
    for number, trace in enumerate(program.traces):
        yield f"  {_tensor(trace, number)}"
    tables = {id(core.steps.forms): core.steps.forms for core in program.cores.values()}
    first, probes = 0, _probes(program)
    handles = _handles(program)
    numbers: dict[int, int] = {}
    for key, table in tables.items():
        numbers[key] = first
        for number, form in enumerate(table.forms[len(TRANSFERS) :], first):
            yield f"  {_form(form, number)}"
        first += len(table.forms) - len(TRANSFERS)
    for core in program.cores.values():
        yield '  "pim.core"() ({'
        yield from _core(core, numbers[id(core.steps.forms)], probes.get(core.core, []), handles)
        attributes = {"coreId": core.core} | ({} if core.addresses is None else {"localBytes": core.local_bytes})
        yield f"  }}) {write_attribute(attributes)} : () -> ()"


def write_location(node: str) -> str:
    """Returns the location of an operation: its ONNX node."""
    return f"loc({quote(node)})"


def _tensor(trace: TensorTrace, number: int) -> str:
    parts = [(*r.channels, *r.rows, *(r.cols or (-1, -1))) for r in trace.regions]
    attributes = {
        "sym_name": f"t{number}",
        "name": trace.tensor,
        "image": to_attribute(trace.image),
        "parts": np.array(parts, np.int64).reshape(-1, 6),
        "element": to_attribute(trace.element),
    }
    if trace.coding is not None:
        attributes["coding"] = to_attribute(trace.coding)
    return f'"pim.tensor"() {write_attribute(attributes)} : () -> () {write_location(trace.node)}'


def _form(form: OperationForm, number: int) -> str:
    more = {"weight_bits": form.weight_bits} if form.weight_bits else {}
    return write_form("pim", number, form.operation, form.slots, more)


def write_form(
    dialect: str, number: int, operation: Operation[Any], slots: Sequence[ShapedValue], more: Mapping[str, Any]
) -> str:
    """Returns the MLIR line that defines a form. `slots`: operands of its operation, each once. `more`: attributes."""
    place = {slot.name: i for i, slot in enumerate(slots)}
    attributes = {
        "sym_name": f"f{number}",
        "kind": operation.mnemonic,
        "parameters": _parameters(operation, lambda value: place[value.name]),
        "slots": [value_type("memref" if dialect == "pim" else "tensor", slot) for slot in slots],
    }
    return f'"{dialect}.form"() {write_attribute({**attributes, **more})} : () -> ()'


def value_type(kind: str, value: ShapedValue) -> MlirType:
    """Returns the type of a value, a memref or tensor of rows x width x channels."""
    return MlirType(kind, (value.rows, value.width, value.channels), element_name(value.element))


def _parameters(operation: Operation[Any], place: Callable[[Any], int]) -> dict[str, Any]:
    """Returns the fields of an operation as attributes. place: the number that stands for each of its values."""
    if isinstance(operation, Gather):
        pieces = [(place(p.value), p.source, p.target, p.channels) for p in operation.pieces]
        return {"result": place(operation.result), "pieces": np.array(pieces, np.int64).reshape(-1, 4)}
    values = operation.map_fields(place)
    rest = {name: getattr(operation, name) for name in operation.__struct_fields__ if name not in values}
    return {name: to_attribute(value) for name, value in (values | rest).items() if name != "function"}


def _handles(program: PimProgram) -> dict[ArrayGroup, str]:
    """Returns the name of the values of each matrix; equal matrices of several cores share it."""
    groups = dict.fromkeys(group for core in program.cores.values() for group in core.groups)
    return {group: f"w{number}_{re.sub(r'[^A-Za-z0-9]', '_', group.layer)}" for number, group in enumerate(groups)}


def _core(
    core: CoreProgram, first_form: int, probes: list[tuple[int, str]], handles: Mapping[ArrayGroup, str]
) -> Iterator[str]:
    steps = core.all_steps
    for group in core.groups:
        yield f"    {_group(group, handles[group])}"
    buffers, used = np.unique(steps.used, return_inverse=True)
    types: list[str] = []
    numbers: list[int] = buffers.tolist()
    for number, b in enumerate(numbers):
        value = steps.buffers.values[b]
        types.append(f"memref<{value.elements}x{element_name(value.element)}>")
        address = "" if core.addresses is None else f", address = {int(core.addresses[b])} : i64"
        yield f'    %{number} = "pim.alloc"() {{name = {quote(value.name)}{address}}} : () -> {types[-1]}'
    for state in np.searchsorted(buffers, core.states).tolist():
        yield f'    "pim.state"(%{state}) : ({types[state]}) -> ()'
    once, steps = core.init_count, replace(steps, used=used)
    if core.init is not None:
        yield from _steps(steps.select(np.arange(once)), types, first_form, [])
        yield '    "pim.init"() : () -> ()'
    yield from _steps(steps.select(np.arange(once, len(steps))), types, first_form, probes)
    yield '    "pim.halt"() : () -> ()'


def _group(group: ArrayGroup, handle: str) -> str:
    (rows, end), (cols, last) = group.matrix.rows, group.matrix.cols
    element = f"i{group.weight_bits}" if group.weight_bits else "f32"
    attributes = {
        "layer": group.layer,
        "matrix": to_attribute(group.matrix),
        "weights": ResourceHandle(handle, MlirType("tensor", (end - rows, last - cols), element)),
    } | ({"weight_bits": group.weight_bits} if group.weight_bits else {})
    return f'"pim.group"() {write_attribute(attributes)} : () -> ()'


def _steps(steps: StepColumns, types: list[str], first_form: int, probes: list[tuple[int, str]]) -> Iterator[str]:
    """Yields the line of each step. Columns become lists, because their entries are read one by one."""
    names = [f"pim.{form.operation.mnemonic}" for form in steps.forms.forms]
    nodes = [write_location(node) for node in steps.nodes]
    columns = (steps.form, steps.node, steps.number, steps.peer, steps.span, steps.start[:-1], steps.start[1:])
    used: list[int] = steps.used.tolist()
    operands = [f"%{b}" for b in range(len(types))]
    counts: list[int] = steps.forms.counts[:, 0].tolist()
    after = iter((*probes, (-1, "")))
    step, probe = next(after)
    lists: list[list[Any]] = [column.tolist() for column in columns]
    rows = zip(*lists, strict=True)
    for i, (form, node, number, peer, (first, count), start, end) in enumerate(rows, 1):
        buffers: list[int] = used[start:end]
        span = "" if first == WHOLE_BUFFER else f", span = array<i64: {first}, {count}>"
        if form == LOAD:
            inside = f"globalSrc = {number} : i64{span}"
        elif form == STORE:
            inside = f"globalDst = {number} : i64"
        elif form in (SEND, RECEIVE):
            inside = f"channel = {number} : i64, core = {peer} : i64{span}"
        else:
            inside = f"form = @f{form - len(TRANSFERS) + first_form}" + (f", shift = {number} : i64" if number else "")
        arguments, kinds = ", ".join([operands[b] for b in buffers]), ", ".join([types[b] for b in buffers])
        yield f'    "{names[form]}"({arguments}) {{{inside}}} : ({kinds}) -> () {nodes[node]}'
        while step == i:
            written = buffers[counts[int(form)]]
            yield f'    "pim.probe"(%{written}) {probe} : ({types[written]}) -> ()'
            step, probe = next(after)


def _probes(program: PimProgram) -> dict[int, list[tuple[int, str]]]:
    """Returns the probes of each core in order: the number of steps before, and the attributes."""
    found: dict[int, list[tuple[int, str]]] = {}
    for number, trace in enumerate(program.traces):
        for part, (core, step) in enumerate(zip(trace.core.tolist(), trace.step.tolist(), strict=True)):
            found.setdefault(core, []).append((step, f"{{tensor = @t{number}, part = {part} : i64}}"))
    return {core: sorted(probes, key=lambda probe: probe[0]) for core, probes in found.items()}
