"""A file of MLIR as a pass of the user: its program takes the place of the one that a pass of the compiler returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raptor import mlir
from raptor.common.errors import UserError, VerifyError
from raptor.common.mlir.reader import line_of, read_text
from raptor.common.mlir.syntax import MlirError
from raptor.common.option_spelling import spell_option


@dataclass(slots=True)
class ProgramFile:
    """A module of a file, which one call gives to the compiler. `after`: the pass whose result it replaces."""

    path: Path
    text: str
    module: mlir.PimModule | mlir.SpatModule

    @classmethod
    def read(cls, path: Path) -> "ProgramFile":
        """Reads a file. Raises `UserError` with the line for one that is no program."""
        label = spell_option("from_mlir", path)
        text = read_text(path, label)
        return cls(path, text, mlir.load(text, label))

    @property
    def after(self) -> str:
        return self.module.made_by

    @property
    def label(self) -> str:
        return spell_option("from_mlir", self.path)

    def __call__(self, result: Any, /) -> Any:
        """Returns what the file has. Raises `UserError` if it was made from something else than `result`."""
        if not mlir.has_form(result) or mlir.compute_source(result) != self.module.source:
            raise UserError(
                f"{self.label}: was made from another model, chip or options, or by another version of RAPTOR; "
                f"compile with {spell_option('dump_ir')} and {spell_option('dump_format', 'mlir')} again"
            )
        try:
            return self.module.resolve(result)
        except MlirError as e:
            raise UserError(self._at(e.position, str(e))) from None

    def _at(self, place: int, message: str) -> str:
        return f"{self.label}: line {line_of(self.text, place)}: {message}"

    def describe(self, error: VerifyError) -> str:
        """Returns what the verifier found, with the line of the step, form, core or compute."""
        return self._at(self.module.place_of(error), str(error))
