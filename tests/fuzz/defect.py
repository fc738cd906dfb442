"""A planted defect: a text of a source file, and the wrong text that replaces it."""

from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.campaign import BrokenError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    """A change of a source file: `old` occurs there exactly once and becomes `new`."""

    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """Returns the changed text of the file. Raises `BrokenError` if `old` does not occur exactly once."""
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise BrokenError(f"{self.file}: {self.old!r} occurs {text.count(self.old)} times; mend this table")
        return text.replace(self.old, self.new)
