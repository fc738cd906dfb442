"""Operations per second and per joule, from the model's number of MACs, which only its compiler knows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files

OPS_PER_MAC = 2
"""Operations of a MAC, as is usual: a multiplication and an addition."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Efficiency of a sample with `macs` MACs, two operations each. `pj_per_mac`: includes static energy."""

    macs: int
    tops: float
    tops_per_w: float
    pj_per_mac: float

    @classmethod
    def compute(cls, macs: int | None, time_ns: float | None, energy_pj: float | None) -> Self | None:
        """Computes the efficiency of one sample; None if one of the numbers is unknown or 0."""
        if not (macs and time_ns and energy_pj):
            return None
        # 1 operation per ns is 1e9 per second; 1 operation per pJ is 1e12 per joule.
        return cls(macs, OPS_PER_MAC * macs / time_ns / 1e3, OPS_PER_MAC * macs / energy_pj, energy_pj / macs)


class _Noted(BaseModel):
    """The one field of `report.json` that is needed here."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    macs: Annotated[int, Field(ge=0, le=2**62)] | None = None


def read_macs(program: Path) -> int | None:
    """Returns the MACs of a sample; None if no compiler has noted them beside the program."""
    if not (program.is_dir() and (program / files.REPORT).is_file()):
        return None
    try:
        return file_access.read_json_file(_Noted, program, files.REPORT).macs
    except UserError:
        return None  # somebody else's file of this name
