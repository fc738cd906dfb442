"""The machine C, as a back end: sources that a C compiler builds, and a list of steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raptor.codegen.c.c_files import CFiles, make_c_facts, make_c_files
from raptor.codegen.c.execution import execute_c
from raptor.codegen.c.form_code import FLOAT_FUNCTIONS, INTEGER_FUNCTIONS, WRITERS
from raptor.codegen.c.program_code import CProgram, generate_c, verify_c
from raptor.codegen.machine_backend import PIM_VERSION, ProgramParts
from raptor.common.errors import UnsupportedNode
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.machine_files import CodeFacts
from raptor.pim import PimProgram
from raptor.pim.operations import Buffer, operation_name
from raptor.pim.step_columns import TRANSFERS, OperationForm
from raptor.spatial.operations import Operation, Vector
from raptor.target.arch import Target

REFUSED = {
    "overlap": "whose programs forget everything between two samples",
    "rounds": "whose crossbars are written once",
    "states": "whose programs forget everything between two samples",
    "stream_format": "which has no instruction streams",
    "trimmable": "whose products are exact",
    "weight_format": "whose matrices are in weights.bin",
}


@dataclass(frozen=True, slots=True)
class CBackend:
    """The machine C (see `raptor.codegen.machine_backend.MachineBackend`)."""

    name: str = "c"
    pim_version: int = PIM_VERSION
    refused: Mapping[str, str] = field(default_factory=lambda: REFUSED)

    def find_faults(self, program: PimProgram, target: Target) -> Iterator[UnsupportedNode]:
        for core in program.cores.values():
            faults = [_fault(form) for form in core.steps.forms.forms]
            bad = [k for k, fault in enumerate(faults) if fault]
            nodes = {(core.steps.nodes[int(s)], k) for k in bad for s in core.steps.node[core.steps.form == k]}
            for node, k in sorted(nodes):
                name = operation_name(type(core.steps.forms.forms[k].operation))
                yield UnsupportedNode(node, name, f"the machine c has no code for {faults[k]}")

    def generate(self, program: PimProgram, target: Target) -> CProgram:
        return generate_c(program, target)

    def verify(self, code: CProgram, program: PimProgram, target: Target) -> None:
        verify_c(code, program)

    def facts(self, code: CProgram) -> CodeFacts:
        return make_c_facts(code)

    def files(self, code: CProgram, parts: ProgramParts) -> CFiles:
        return make_c_files(code, parts)

    def execute(self, folder: Path, memory: bytes, captured: int) -> tuple[bytes, bytes]:
        places = file_access.read_json_file(files.MemoryMap, folder, files.MEMORY)
        manifest = file_access.read_json_file(files.OutputManifest, folder, files.MANIFEST)
        scale = 4 if manifest.numbers == "float" else 1
        first = places.constants.address // places.element_bytes
        return execute_c(folder, memory, captured, (first * scale, (first + places.constants.elements) * scale))


def _fault(form: OperationForm) -> str:
    """Returns what of a form has no C code; empty if all has."""
    operation: Operation[Buffer] = form.operation
    if form in TRANSFERS or type(operation) in WRITERS:
        if not isinstance(operation, Vector) or operation.function in ("float", "round"):
            return ""
        is_float = operation.operands[0].element.kind == "float"
        known = FLOAT_FUNCTIONS if is_float else INTEGER_FUNCTIONS
        return "" if operation.function in known else f"{operation.function} of {'floats' if is_float else 'integers'}"
    return operation_name(type(operation))


C_BACKEND = CBackend()
