"""Results of a profile. Cores are named by their numbers on the chip; times are in ns, energy in pJ, sizes in bytes.

None means unknown; if it stands for a time or an energy, `Profile.untimed` gives the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from raptor.target.arch import Target
from validator.checks import Finding
from validator.simulate.analysis.mesh_use import MeshUse
from validator.simulate.analysis.power import PowerCurve, PowerFigures
from validator.simulate.analysis.uncounted_power import UncountedPower
from validator.simulate.simulation_report import CoreUse
from validator.simulate.weight_reloading import ReloadingFigures

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GLOBAL_MEMORY = -1
"""Number that stands for global memory in a `Flow`."""

ACTIVITY_KINDS = ("matrix", "vector", "transfer", "wait to send", "wait to receive", "wait for token")
"""Kinds of activity of a core: its units work, or it waits for another core."""

NOBODY = -1


@dataclass(frozen=True, slots=True)
class SampleEstimate:
    """Time and energy of a sample, from the cycle model. `interval_ns`: time between samples in the steady state.

    `energy_pj`: energy of one sample alone; `interval_energy_pj`: energy per sample if `samples` follow one another;
    both keyed by part of the chip (docs/explanation/energy.md). `no_interval`: reason why the interval is unknown, or
    empty.
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
class PartFigures:
    """Figures of an ONNX node, or of a kind of instruction. `critical_ns`: its time on the critical path.

    `moved_bytes`: bytes sent to other cores; `global_bytes`: bytes to and from global memory. `energy_pj`: energy that
    can be attributed to parts, without static energy, decode, register file and scalar unit.
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
class CoreFigures:
    """A core of the program. `use` is None without times, and for a core without instructions.

    `parts`: names of parts with the ns that the core's units work for them, the largest first; without times, with the
    number of instructions. `waits`: cores that it waits for, with the ns, the longest first. `local_bytes`: bytes of
    local memory that it uses, according to the compiler.
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
    """Rows and columns of the mesh of cores. `known`: from the architecture file; else nearly square by assumption."""

    rows: int
    cols: int
    is_known: bool

    def position(self, core: int) -> tuple[int, int]:
        return divmod(core, self.cols)

    def hops(self, a: int, b: int) -> int:
        """Returns the number of links on a shortest path through the mesh."""
        (row_a, col_a), (row_b, col_b) = self.position(a), self.position(b)
        return abs(row_a - row_b) + abs(col_a - col_b)


@dataclass(frozen=True, slots=True)
class MessageFlow:
    """Messages from one core to another, or from or to `GLOBAL_MEMORY` (then `hops` is None).

    `flit_ns`: latency of a flit between the two, from the network table; None if it is not known.
    """

    source: int
    to: int
    messages: int
    bytes: int
    hops: int | None
    flit_ns: float | None


@dataclass(frozen=True, slots=True, eq=False)
class CoreTimeline:
    """Activity of each core over time, in equal intervals (bins) of the latency.

    `shares[kind, core, bin]`: part of the interval that the core spends with the kind (an index of `KINDS`); array
    groups that work at the same time count each. `part[core, bin]`: index of the part with most work and waiting.
    `partner[core, bin]`: the core that was waited for longest. Both are `NOBODY` if there is none. `cores`: the core
    numbers of the rows.
    """

    cores: tuple[int, ...]
    bin_ns: float
    shares: npt.NDArray[np.float32]
    part: Ints
    partner: Ints

    @property
    def bin_count(self) -> int:
        return self.shares.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class LocalMemoryUse:
    """Use of local memory over time.

    `bytes[core, k]`: number of bytes in use at the time k * `step_ns`, that is, written before and read later.
    `cores`: the core numbers of the rows. `size_bytes`: size of a core's memory, if the chip is known.
    """

    cores: tuple[int, ...]
    step_ns: float
    bytes: Ints
    size_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class CrossbarUse:
    """Columns of the crossbars in use, with one entry each. `rows`, `cols`: the part of the matrix that it holds.

    `fill`: share of its cells that the matrix covers, zeros included. `part`: index of the part that uses it, or -1.
    `products`: number of products of its array group.
    """

    core: Ints
    slot: Ints
    group: Ints
    rows: Ints
    cols: Ints
    fill: Floats
    part: Ints
    products: Ints


@dataclass(frozen=True, slots=True, eq=False)
class PowerProfile:
    """Power over time of one sample alone. `by_part`: curve with a row for each part of the energy, in equal intervals.

    `core_watts[core, interval]`: power of the cores with work, whose numbers are `cores`. `alone`, `streaming`: average
    and peak of one sample, and of samples that follow one another (None if they cannot). `uncounted`: static power that
    the simulator does not add, for one sample alone. `mesh`: use of the links, when streaming if that is known.
    """

    by_part: PowerCurve
    cores: tuple[int, ...]
    core_watts: Floats
    alone: PowerFigures
    streaming: PowerFigures | None
    uncounted: UncountedPower
    mesh: MeshUse | None


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Profile of a program. `part_kind`: kind of the `parts`. `untimed`: reason why there are no times, or empty.

    `part_names`: names for the indices in `CoreTimeline.part` and `CrossbarUse.part`, parts without instructions
    included. `crossbars` is None if the sizes of the matrices are not known (no weights, or no architecture).
    `reloading`: only for a program in rounds, whose estimate is for a batch with writing. `power` is None for a program
    of several segments, too."""

    program: str
    instructions: int
    chip: Target | None
    mesh: Mesh
    untimed: str
    estimate: SampleEstimate | None
    part_kind: Literal["node", "instruction"]
    parts: tuple[PartFigures, ...]
    part_names: tuple[str, ...]
    cores: tuple[CoreFigures, ...]
    traffic: tuple[MessageFlow, ...]
    timeline: CoreTimeline | None
    local_memory: LocalMemoryUse | None
    crossbars: CrossbarUse | None
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    reloading: ReloadingFigures | None = None
    power: PowerProfile | None = None
