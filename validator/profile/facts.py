"""What a profile says. Cores are named by their numbers on the chip; times in ns, energy in pJ, sizes in bytes.

None: not known, for the reason in `Profile.untimed` where it is about time or energy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.target.arch import ArchFile
from validator.checks import Finding
from validator.simulate.report import CoreUse

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GLOBAL_MEMORY = -1
"""What `Traffic` calls global memory."""

KINDS = ("matrix", "vector", "transfer", "wait to send", "wait to receive", "wait for token")
"""What a core does: its units work, or it waits for another core."""

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and energy of a sample by the cycle model. `interval_ns`: between samples in the steady state.

    `energy_pj` is of one sample alone, `interval_energy_pj` of one of many; both by part (docs/energy.md).
    """

    estimator: str
    latency_ns: float
    energy_pj: Mapping[str, float]
    interval_ns: float | None
    interval_energy_pj: Mapping[str, float]
    samples: int
    no_interval: str

    @property
    def samples_per_s(self) -> float | None:
        return 1e9 / self.interval_ns if self.interval_ns else None


@dataclass(frozen=True, slots=True)
class Part:
    """An ONNX node, or a kind of instruction. `critical_ns`: its share of the chain that takes the whole latency.

    `moved_bytes` between cores, counted at the sender; `global_bytes` to and from global memory. `energy_pj` is what
    can be told apart: without static energy, decode, register file and scalar unit.
    """

    name: str
    instructions: Mapping[str, int]
    products: int
    moved_bytes: int
    global_bytes: int
    cores: tuple[int, ...]
    busy_ns: float | None
    waited_ns: float | None
    critical_ns: float | None
    energy_pj: float | None


@dataclass(frozen=True, slots=True)
class CoreFacts:
    """A core of the program; `use` is None for one without instructions too.

    `parts`: names and how many of its instructions (or, if known, ns of its units) each has, the largest first.
    `waits`: for which cores it waits, ns, the longest first. `local_bytes`: what the compiler says it uses.
    """

    core: int
    xbars: int
    local_bytes: int | None
    instructions: Mapping[str, int]
    use: CoreUse | None
    parts: tuple[tuple[str, float], ...]
    waits: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Rows and columns of the chip. `known`: the architecture says so; otherwise the most square one is assumed."""

    rows: int
    cols: int
    known: bool

    def place(self, core: int) -> tuple[int, int]:
        return divmod(core, self.cols)

    def hops(self, a: int, b: int) -> int:
        """Links on the shortest way through the mesh."""
        (row_a, col_a), (row_b, col_b) = self.place(a), self.place(b)
        return abs(row_a - row_b) + abs(col_a - col_b)


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes from one core to another, or from and to `GLOBAL_MEMORY` (no hops then).

    `flit_ns`: what the network table says of this pair; None without one.
    """

    source: int
    to: int
    messages: int
    bytes: int
    hops: int | None
    flit_ns: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What each core does in each of equal intervals of the latency.

    `shares[kind, core, bin]`: part of the interval, of `KINDS`; array groups that work at once count each. `part`:
    index of the part that takes most of the interval's work and waiting, `partner`: the core that was waited for
    longest; both `NOBODY` where there is none. `cores`: the numbers of the rows.
    """

    cores: tuple[int, ...]
    bin_ns: float
    shares: npt.NDArray[np.float32]
    part: Ints
    partner: Ints

    @property
    def bins(self) -> int:
        return self.shares.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class LocalMemory:
    """`bytes[core, k]`: that hold something at the instant k of `step_ns`: written before, and read later.

    `size_bytes`: of a core's memory, if the chip is known.
    """

    cores: tuple[int, ...]
    step_ns: float
    bytes: Ints
    size_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Crossbars:
    """Every crossbar in use. `fill`: cells that the matrix covers, zeros included. `part`: what it is for, or -1."""

    core: Ints
    slot: Ints
    group: Ints
    rows: Ints
    cols: Ints
    fill: Floats
    part: Ints
    products: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Everything. `parts_are` says what `parts` are; `untimed` why there are no times, empty if there are.

    `part_names`: what `Timeline.part` and `Crossbars.part` index, also those without instructions.
    `crossbars` is None where the sizes of the matrices are not known (no weights, or no architecture).
    """

    program: str
    instructions: int
    chip: ArchFile | None
    mesh: Mesh
    untimed: str
    estimate: Estimate | None
    parts_are: Literal["node", "instruction"]
    parts: tuple[Part, ...]
    part_names: tuple[str, ...]
    cores: tuple[CoreFacts, ...]
    traffic: tuple[Flow, ...]
    timeline: Timeline | None
    local_memory: LocalMemory | None
    crossbars: Crossbars | None
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
