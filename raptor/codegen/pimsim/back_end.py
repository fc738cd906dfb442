"""The machine pimsim-nn, as a back end: its programs are instruction streams, which the validator executes itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raptor.codegen.machine_backend import PIM_VERSION, ProgramParts
from raptor.codegen.pimsim.generate_streams import InstructionStreams, generate
from raptor.codegen.pimsim.stream_files import PimsimFiles, make_facts, make_files
from raptor.codegen.pimsim.verify_streams import verify_streams
from raptor.common.errors import InternalError, UnsupportedNode
from raptor.output.files import PIMSIM
from raptor.output.machine_files import CodeFacts
from raptor.pim import PimProgram
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class PimsimBackend:
    """The machine of pimsim-nn (see `raptor.codegen.machine_backend.MachineBackend`)."""

    name: str = PIMSIM
    pim_version: int = PIM_VERSION
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    def find_faults(self, program: PimProgram, target: Target) -> Iterator[UnsupportedNode]:
        """Yields nothing: there are instructions for every operation."""
        yield from ()

    def generate(self, program: PimProgram, target: Target) -> InstructionStreams:
        return generate(program, target)

    def verify(self, code: InstructionStreams, program: PimProgram, target: Target) -> None:
        verify_streams(code, program=program, arch=target)

    def facts(self, code: InstructionStreams) -> CodeFacts:
        return make_facts(code)

    def files(self, code: InstructionStreams, parts: ProgramParts) -> PimsimFiles:
        return make_files(code, parts)

    def execute(self, folder: Path, memory: bytes, captured: int) -> tuple[bytes, bytes]:
        raise InternalError("streams are executed by the engines of the validator")


PIMSIM_BACKEND = PimsimBackend()
