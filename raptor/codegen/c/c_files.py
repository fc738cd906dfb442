"""Files of a program in C: sources, Makefile, list of steps, matrices."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files as package_files

import numpy as np

from raptor.codegen.c.c_types import spell_weight_type
from raptor.codegen.c.program_code import CProgram
from raptor.codegen.machine_backend import ProgramParts
from raptor.graph.ir import Numbers
from raptor.output import file_contents, files
from raptor.output.machine_files import CodeFacts, Content, FileForms
from raptor.target.arch import Target

SOURCES = ("pim.h", "runtime.c", "main.c", "Makefile")
"""Files that every program has, equal for all."""
PROGRAM, STEPS, MATRICES = "program.c", "steps.bin", "weights.bin"
C_FILES = (*SOURCES, PROGRAM)
"""Files that `make` reads."""


@dataclass(frozen=True, slots=True, eq=False)
class CFiles:
    """Contents of the files that programs in C have."""

    target: Target
    program: str
    steps: bytes
    matrices: tuple[Numbers, ...]
    layers: bytes

    @property
    def folders(self) -> tuple[str, ...]:
        return ()

    def contents(self, forms: FileForms) -> Iterator[Content]:
        yield MATRICES, (_padded(matrix) for matrix in self.matrices)
        yield STEPS, [self.steps]
        yield PROGRAM, [self.program.encode()]
        yield files.LAYERS, [self.layers]
        for name in SOURCES:
            yield name, [package_files("raptor.codegen.c").joinpath("runtime", name).read_bytes()]


def make_c_facts(code: CProgram) -> CodeFacts:
    """Returns the steps of each core, as its instructions."""
    return CodeFacts(code.names, code.kinds, {i: np.arange(len(kinds) + 1) for i, kinds in code.kinds.items()})


def make_c_files(code: CProgram, parts: ProgramParts) -> CFiles:
    """Returns the files of a program. Equal matrices are stored once."""
    held: dict[bytes, int] = {}
    matrices: list[Numbers] = []
    end = 0
    rows: list[str] = []
    weights = file_contents.collect_weights(parts.program, parts.graph)
    for core in code.groups:
        for group, matrix in enumerate(weights.get(core, ())):
            digest = hashlib.sha256(f"{matrix.dtype}{matrix.shape}".encode() + matrix.tobytes()).digest()
            if digest not in held:
                held[digest] = end
                matrices.append(matrix)
                end += len(_padded(matrix))
            size = f"{matrix.shape[0]}, {matrix.shape[1]}"
            rows.append(f"    {{{core}, {group}, {size}, {spell_weight_type(matrix.dtype)}, {held[digest]}, 0}},")
    steps = np.concatenate([[len(code.init)], code.init, code.sample]).astype("<i4")
    return CFiles(
        target=parts.target,
        program=_program_text(code, parts, rows, end),
        steps=steps.tobytes(),
        matrices=tuple(matrices),
        layers=file_contents.make_layers(parts.program, make_c_facts(code)),
    )


def _padded(matrix: Numbers) -> bytes:
    """Returns the bytes of a matrix, up to a multiple of four."""
    content = np.ascontiguousarray(matrix, matrix.dtype.newbyteorder("<")).tobytes()
    return content + bytes(-len(content) % 4)


def _program_text(code: CProgram, parts: ProgramParts, rows: list[str], end: int) -> str:
    """Returns `program.c`. `end`: bytes of all matrices."""
    memory, unit = parts.memory, code.sizes.bytes_per_unit
    counts = [len(groups) for groups in code.groups.values()]
    first = np.cumsum([0, *counts])[:-1].tolist()
    tops = ", ".join(f"pim_all_matrices + {k}" for k in first) or "0"
    locals_ = ", ".join(map(str, code.local_units.tolist())) or "0"
    lines = [
        "/* Written by RAPTOR: what is special about one model. See pim.h. */",
        '#include "pim.h"\n',
        code.forms,
        f"pim_matrix pim_all_matrices[] = {{{'' if rows else '{0}'}",
        *rows,
        "};",
        f"pim_matrix *const pim_matrices[] = {{{tops}}};",
        f"const int pim_matrix_count = {len(rows)}, pim_core_count = {len(counts)};",
        f"const int pim_unit = {4 if code.sizes.is_float else 1}, pim_most_slots = {code.most_slots};",
        f"const int pim_local_units[] = {{{locals_}}};",
        f"const int64_t pim_global_units = {memory.size_bytes // unit};",
        f"const int64_t pim_constants_at = {memory.constants_address // unit};",
        f"const int64_t pim_outputs_at = {memory.constants_end // unit};",
        f"const int64_t pim_captured_units = {code.captured_units}, pim_weights_bytes = {end};",
        "const int pim_form_count = sizeof pim_forms / sizeof *pim_forms;",
    ]
    return "\n".join(lines) + "\n"
