"""Programs of cores from operations on buffers, as tests write them down."""

from collections.abc import Iterable, Mapping

import numpy as np

from raptor.pim.ir import CoreProgram
from raptor.pim.operations import Buffer, Load, Receive, Send, Store
from raptor.pim.step_columns import (
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    TRANSFERS,
    WHOLE_BUFFER,
    BufferTable,
    FormTable,
    OperationForm,
    PimStep,
    StepColumns,
)
from raptor.spatial.operations import Operation
from tests.values import replace

KINDS = {Load: LOAD, Store: STORE, Send: SEND, Receive: RECEIVE}


def steps_of(steps: Iterable[PimStep], weight_bits: int = 0) -> StepColumns:
    """The columns of some steps; each has a form of its own."""
    steps = list(steps)
    forms, nodes = list(TRANSFERS), list(dict.fromkeys(step.node for step in steps))
    buffers = {b.name: b for step in reversed(steps) for b in reversed(step.operation.touches)}
    number = {name: i for i, name in enumerate(buffers)}
    rows: list[tuple[int, ...]] = []
    used: list[list[int]] = []
    for step in steps:
        op = step.operation
        used.append([number[b.name] for b in dict.fromkeys(op.touches)])
        form = KINDS.get(type(op), len(forms))
        if form == len(forms):
            forms.append(OperationForm.from_operation(op, weight_bits))
        span = getattr(op, "span", None) or (WHOLE_BUFFER, 0)
        open_ = getattr(op, "channel", getattr(op, "address", 0)) if type(op) in KINDS else 0
        rows.append((form, nodes.index(step.node), open_, getattr(op, "core", 0), *span))
    form, node, open_, peer, first, count = np.array(rows, np.int64).reshape(-1, 6).T
    start = np.cumsum([0, *map(len, used)])
    flat = np.array([k for of in used for k in of], np.int64)
    columns = (
        BufferTable(tuple(buffers.values())),
        form,
        node,
        open_,
        peer,
        np.stack([first, count], axis=1),
        start,
        flat,
    )
    return StepColumns(FormTable(tuple(forms)), tuple(nodes), *columns)


def of_operations(*operations: Operation[Buffer]) -> StepColumns:
    """The columns of some operations, all of node n."""
    return steps_of(PimStep(op, "n") for op in operations)


def at_addresses(core: CoreProgram, addresses: Mapping[str, int]) -> CoreProgram:
    """The core with buffers at other addresses, by name."""
    names = [value.name for value in core.steps.buffers.values]
    before = np.full(len(names), -1) if core.addresses is None else core.addresses
    found = [addresses.get(name, at) for name, at in zip(names, before.tolist(), strict=True)]
    return replace(core, addresses=np.array(found, np.int64))
