"""The code of a program in C: functions of its forms, sizes of its memories, and its list of steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raptor.codegen.c import step_table
from raptor.codegen.c.form_code import FormWriter
from raptor.codegen.c.step_table import END, UnitSizes, count_captured_units, list_steps
from raptor.common.errors import CapacityError, VerifyError
from raptor.common.option_spelling import spell_option
from raptor.pim.ir import ArrayGroup, PimProgram
from raptor.pim.operations import operation_name
from raptor.pim.step_columns import LOAD, RECEIVE, SEND, STORE, TRANSFERS, FormTable, Ints
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT

MOST_UNITS = 2**31 - 1
"""Largest address that a word of a step can hold."""


@dataclass(frozen=True, slots=True, eq=False)
class CProgram:
    """A program in C, without its matrices.

    forms: text of the functions, and of the table of them. groups: array groups of each core, by number of the core.
    init, sample: words of the steps (`raptor.codegen.c.step_table`). local_units: size of each local memory.
    """

    forms: str
    groups: Mapping[int, tuple[ArrayGroup, ...]]
    init: Ints
    sample: Ints
    local_units: Ints
    captured_units: int
    most_slots: int
    sizes: UnitSizes
    names: tuple[str, ...]
    kinds: Mapping[int, Ints]

    def __str__(self) -> str:
        return self.forms


def find_unit_sizes(program: PimProgram, target: Target) -> UnitSizes:
    """Returns the units of memory: elements in a program of floats, else bytes."""
    is_float = any(b.element == MODELLED_FLOAT for core in program.cores.values() for b in core.steps.buffers.values)
    return UnitSizes(target.element_bytes if is_float else 1, is_float)


def _tables(program: PimProgram) -> list[FormTable]:
    return list({id(core.steps.forms): core.steps.forms for core in program.cores.values()}.values())


def generate_c(program: PimProgram, target: Target) -> CProgram:
    """Returns the program in C. Raises `CapacityError` if its global memory is larger than a word can address."""
    sizes = find_unit_sizes(program, target)
    _check_addresses(program, sizes)
    tables = _tables(program)
    assert len(tables) <= 1, "all cores share the forms"
    forms = tables[0] if tables else FormTable()
    used = np.unique(np.concatenate([np.zeros(0, np.int64), *(c.all_steps.form for c in program.cores.values())]))
    chosen: list[int] = used[used >= len(TRANSFERS)].tolist()
    init, sample = list_steps(program, sizes)
    classes = list(dict.fromkeys(forms.classes))
    number = np.array([classes.index(kind) for kind in forms.classes], np.int64)
    return CProgram(
        forms="\n".join(_form_lines(forms, chosen, sizes)),
        groups={i: core.groups for i, core in program.cores.items()},
        init=init,
        sample=sample,
        local_units=np.array([c.local_bytes // sizes.bytes_per_unit for c in program.cores.values()], np.int64),
        captured_units=count_captured_units(program, sizes),
        most_slots=max((len(forms.forms[k].slots) for k in chosen), default=0),
        sizes=sizes,
        names=tuple(map(operation_name, classes)),
        kinds={i: number[core.steps.form] for i, core in program.cores.items()},
    )


def _check_addresses(program: PimProgram, sizes: UnitSizes) -> None:
    for core in program.cores.values():
        steps = core.all_steps
        far = steps.number[(steps.form == LOAD) | (steps.form == STORE)]
        last = int(far.max(initial=0)) // sizes.bytes_per_unit
        if last > MOST_UNITS:
            raise CapacityError(
                "addresses of global memory",
                last,
                MOST_UNITS,
                where=f"core {core.core}",
                levers=(f"fewer {spell_option('element_bits')}",),
            )


def _form_lines(forms: FormTable, chosen: list[int], sizes: UnitSizes) -> Iterator[str]:
    for k in chosen:
        yield f"static void form_{k}(char *const *p, const pim_matrix *w) {{"
        yield "    (void)w;"
        yield from (f"    {line}" for line in FormWriter(forms.forms[k], sizes.bytes_per_unit).body())
        yield "}\n"
    known = set(chosen)
    names = (f"form_{k}" if k in known else "0" for k in range(len(forms.forms)))
    yield f"const pim_form pim_forms[] = {{{', '.join(names)}}};"


def verify_c(code: CProgram, program: PimProgram) -> None:
    """Raises `VerifyError` unless each core does its steps in their order, and each tensor is captured."""
    listed, captures = _list_forms(code.sample, len(program.cores))
    for found, core in zip(listed, program.cores.values(), strict=True):
        if found != core.steps.form.tolist():
            raise VerifyError(f"core {core.core}: the list of steps is not its program")
    traced = sum(len(trace.regions) for trace in program.traces)
    if captures != traced:
        raise VerifyError(f"{captures} captures of {traced} parts of tensors")


def _list_forms(words: Ints, cores: int) -> tuple[list[list[int]], int]:
    """Returns the forms of the steps of each core, in the order of the list, and the number of captures.

    Raises `VerifyError` for an entry of an unknown kind.
    """
    found: list[list[int]] = [[] for _ in range(cores)]
    listed: list[int] = words.tolist()
    at = captures = 0
    while listed[at] != END:
        kind, *rest = listed[at : at + 6]
        match kind:
            case step_table.LOAD_STEP | step_table.STORE_STEP:
                found[rest[0]].append(LOAD if kind == step_table.LOAD_STEP else STORE)
                at += 5
            case step_table.MESSAGE:
                found[rest[0]].append(SEND)
                found[rest[2]].append(RECEIVE)
                at += 6
            case step_table.CAPTURE:
                captures, at = captures + 1, at + 5
            case step_table.FORM_STEP:
                found[rest[1]].append(rest[0])
                at += 5 + rest[3]
            case _:
                raise VerifyError(f"word {at}: no kind of step has the number {kind}")
    return found, captures
