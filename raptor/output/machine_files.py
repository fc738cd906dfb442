"""Files that a machine adds to an output directory, and facts about its code for reports."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from raptor.common.options.option_values import StreamFormat, WeightFormat
from raptor.target.arch import Target

Content = tuple[str, Iterable[bytes]]
"""Name of a file in the output directory, and an iterable of its bytes, which is consumed while it is written."""


@dataclass(frozen=True, slots=True)
class FileForms:
    """The forms in which the user wants files; a machine that has only one form of a file ignores its option."""

    streams: StreamFormat = "json"
    weights: WeightFormat = "json"


@dataclass(frozen=True, slots=True, eq=False)
class CodeFacts:
    """The instructions of a program, by core. A machine without instructions counts its steps.

    names: name of each kind of instruction. kinds: kind of each instruction of a core, an index into `names`.
    step_ends: the first k steps of a core are its first `step_ends[k]` instructions.
    """

    names: tuple[str, ...]
    kinds: Mapping[int, npt.NDArray[np.integer]]
    step_ends: Mapping[int, npt.NDArray[np.integer]]

    def count(self, core: int) -> npt.NDArray[np.int64]:
        """Returns the number of instructions of each kind on a core, [kinds]."""
        return np.bincount(self.kinds[core], minlength=len(self.names))


class MachineFiles(Protocol):
    """The files of a program that belong to its machine.

    target: the chip as `arch.json` has it. folders: folders to make before any file is written, besides `weights`.
    """

    @property
    def target(self) -> Target: ...

    @property
    def folders(self) -> tuple[str, ...]: ...

    def contents(self, forms: FileForms) -> Iterator[Content]:
        """Yields the files, the largest first. Two calls yield equal bytes."""
        ...
