"""A file of MLIR as a pass of the user: its program takes the place of the one that a pass of the compiler returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor import mlir
from raptor.common.errors import UserError, VerifyError
from raptor.common.option_spelling import spell_option
from raptor.mlir.reader import line_of
from raptor.pim.ir import PimProgram, TensorTrace
from raptor.pim.verify_pim import PimError

MOST_BYTES = 2**31
"""Size of the largest file that is read."""
_BYTECODE = b"ML\xefR"


@dataclass(slots=True)
class ProgramFile:
    """A module of a file, which one call gives to the compiler. `after`: the pass whose result it replaces."""

    path: Path
    text: str
    module: mlir.PimModule

    @classmethod
    def read(cls, path: Path) -> "ProgramFile":
        """Reads a file. Raises `UserError` with the line for one that is no program."""
        label = spell_option("from_mlir", path)
        try:
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as e:
            raise UserError(f"{label}: {e.strerror or e}") from None
        if len(content) > MOST_BYTES:
            raise UserError(f"{label}: more than {MOST_BYTES} bytes")
        if content.startswith(_BYTECODE):
            raise UserError(f"{label}: is bytecode; mlir-opt --mlir-print-debuginfo makes text of it")
        try:
            text = content.decode()
        except UnicodeDecodeError as e:
            line = content.count(b"\n", 0, e.start) + 1
            raise UserError(f"{label}: line {line}: is no UTF-8") from None
        return cls(path, text, mlir.load(text, label))

    @property
    def after(self) -> str:
        return self.module.made_by

    @property
    def label(self) -> str:
        return spell_option("from_mlir", self.path)

    def __call__(self, result: Any, /) -> PimProgram:
        """Returns the program of the file. Raises `UserError` if it was made from something else than `result`."""
        program = self.module.program
        if not isinstance(result, PimProgram):
            raise UserError(f"{self.label}: line 1: {self.after} returns no program of this dialect")
        if mlir.source_digest(result) != self.module.source:
            raise UserError(
                f"{self.label}: was made from another model, chip or options, or by another version of RAPTOR; "
                f"compile with {spell_option('dump_ir')} and {spell_option('dump_format', 'mlir')} again"
            )
        self._check_groups(result)
        self._check_traces(result)
        return program

    def _check_groups(self, own: PimProgram) -> None:
        """Checks that each matrix is one that the mapping has, since the values of weights come from there."""
        known = {group for core in own.cores.values() for group in core.groups}
        for number, core in self.module.program.cores.items():
            for group, place in zip(core.groups, self.module.groups[number], strict=True):
                if group not in known:
                    raise UserError(self._at(place, f"the mapping of {group.layer!r} has no such matrix"))

    def _check_traces(self, own: PimProgram) -> None:
        """Checks that the tensors are those of the model; only the places where they are observed may differ."""
        wanted = {trace.tensor: _content(trace) for trace in own.traces}
        for trace, place in zip(self.module.program.traces, self.module.traces, strict=True):
            if wanted.pop(trace.tensor, None) != _content(trace):
                raise UserError(self._at(place, f"the tensor {trace.tensor!r} is another one in the model"))
        for name in wanted:
            raise UserError(f"{self.label}: the tensor {name!r} of the model is missing")

    def _at(self, place: int, message: str) -> str:
        return f"{self.label}: line {line_of(self.text, place)}: {message}"

    def describe(self, error: VerifyError) -> str:
        """Returns what the verifier found, with the line of the step, form or core."""
        place = 0
        if isinstance(error, PimError):
            if error.form is not None:
                place = int(self.module.forms[error.form])
            elif error.core is not None:
                steps = self.module.steps[error.core]
                place = self.module.cores[error.core] if error.step is None else int(steps[error.step])
        return self._at(place, str(error))


def _content(trace: TensorTrace) -> tuple[object, ...]:
    return trace.node, trace.image, trace.regions, trace.element, trace.coding
