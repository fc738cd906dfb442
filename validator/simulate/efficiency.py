"""Operations a second, a joule: of the multiply-accumulates of the model, which only its compiler knows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from raptor.common import storage
from raptor.common.errors import UserError
from raptor.output import files

OPS_PER_MAC = 2
"""As everybody counts: a multiplication and an addition."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Of `macs` multiply-accumulates, two operations each. `pj_per_mac`: all energy of the sample, static too."""

    macs: int
    tops: float
    tops_per_w: float
    pj_per_mac: float

    @classmethod
    def of(cls, macs: int | None, time_ns: float | None, energy_pj: float | None) -> Self | None:
        """None where any of them is not known, or nothing."""
        if not (macs and time_ns and energy_pj):
            return None
        # Operations a ns are 1e9 a second, operations a pJ 1e12 a joule.
        return cls(macs, OPS_PER_MAC * macs / time_ns / 1e3, OPS_PER_MAC * macs / energy_pj, energy_pj / macs)


class _Noted(BaseModel):
    """What is wanted of `report.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    macs: Annotated[int, Field(ge=0, le=2**62)] | None = None


def macs_of(program: Path) -> int | None:
    """Multiply-accumulates of a sample; None where no compiler has noted them beside the program."""
    if not (program.is_dir() and (program / files.REPORT).is_file()):
        return None
    try:
        return storage.read(_Noted, program, files.REPORT).macs
    except UserError:
        return None  # somebody else's file of this name
