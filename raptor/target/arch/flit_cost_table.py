"""Reads network tables of chips: row by row, or as complete matrices of all pairs.

For a pair that a table lacks, pimsim-nn silently counts no time. So a table must have every pair that a program may
use.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from raptor.common.errors import UserError
from raptor.target.arch.pimsim_schema import NETWORK_FILE
from raptor.target.instruction_json import DECODE_ERRORS

Floats = npt.NDArray[np.float64]
CostKind = Literal["latency", "energy"]
COST_KINDS: tuple[CostKind, CostKind] = ("latency", "energy")

TABLE_LIMIT_BYTES = 2**32
_SHOWN = 3
_NUMBERS = {int, float}


@dataclass(frozen=True, slots=True, eq=False)
class FlitCostTable:
    """The cost of a flit between the cores of a chip.

    `latency_ns` and `energy_pj`: [cores + 1, cores + 1], from row to column; the last index is the global memory.
    `content`: the bytes of the file at `path`, from which it was read.
    """

    path: Path
    content: bytes
    latency_ns: Floats
    energy_pj: Floats

    @property
    def between_cores_ns(self) -> Floats:
        """The latencies of all ordered pairs of different cores, in one dimension."""
        count = len(self.latency_ns) - 1
        return self.latency_ns[:count, :count][~np.eye(count, dtype=np.bool_)]

    @property
    def to_memory_ns(self) -> Floats:
        """The latencies from each core to the global memory, [cores]."""
        return self.latency_ns[:-1, -1]

    def cost(self, kind: CostKind, source: str, to: str) -> float | None:
        """Returns the entry of a pair, named as in the file (cores by number); None if a core is not on this chip."""
        matrix = self.latency_ns if kind == "latency" else self.energy_pj
        a, b = self._index(source), self._index(to)
        return None if a is None or b is None or a == b else float(matrix[a, b])

    def _index(self, name: str) -> int | None:
        """Returns the index of a core or of the global memory, whose name is below 0; None for another core."""
        count, core = len(self.latency_ns) - 1, int(name)
        return core if 0 <= core < count else count if core < 0 else None


class FlitCostFile:
    """Content of a network table. Rows are decoded on demand, because a table of 4000 cores has 317 MB."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises `UserError` for content that is not an object with the objects `latency` and `energy`."""
        self._path = path
        outer = self._members(content, "expected a JSON object")
        self._rows = {
            kind: self._members(outer.get(kind, b"null"), f"{kind} should be an object") for kind in COST_KINDS
        }

    def row(self, kind: CostKind, source: str) -> Mapping[str, object]:
        """Returns the unchecked entries of a row; none if there is no such row. Raises `UserError` for invalid JSON."""
        text = self._rows[kind].get(source)
        try:
            row: object = msgspec.json.decode(text) if text else {}
        except DECODE_ERRORS as e:
            raise UserError(f"network table {self._path}: {kind} from {source}: {e}") from e
        if not isinstance(row, dict):
            raise UserError(f"network table {self._path}: {kind} from {source}: expected an object")
        return cast(dict[str, object], row)

    def number_error(self, kind: CostKind, source: str, to: str, value: object) -> UserError:
        """Makes the error for an entry that is not a number of at least 0."""
        pair = f"{kind} from {source} to {to}"
        return UserError(f"network table {self._path}: {pair}: expected a number from 0, not {value!r:.40}")

    def _members(self, content: bytes | msgspec.Raw, fault: str) -> Mapping[str, msgspec.Raw]:
        try:
            return msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except DECODE_ERRORS as e:
            expected = "expected the objects latency and energy"
            raise UserError(f"network table {self._path}: {expected}: {fault}: {e}") from e


def make_cost_table(
    latency_ns: tuple[Floats, Floats], energy_pj: tuple[Floats, Floats], memory_id: int
) -> FlitCostTable:
    """Makes a table from costs: [cores, cores] between cores, and [cores] to the global memory, named `memory_id`."""
    latency, energy = _with_memory(*latency_ns), _with_memory(*energy_pj)
    names = [*map(str, range(len(latency) - 1)), str(memory_id)]
    content = orjson.dumps({"latency": _rows(latency, names), "energy": _rows(energy, names)}) + b"\n"
    return FlitCostTable(Path(NETWORK_FILE), content, latency, energy)


def _with_memory(between: Floats, memory: Floats) -> Floats:
    """Returns the costs between cores, with the global memory as the last row and column; 0 from a place to itself."""
    whole = np.zeros((len(between) + 1, len(between) + 1))
    whole[:-1, :-1], whole[:-1, -1], whole[-1, :-1] = between, memory, memory
    np.fill_diagonal(whole, 0.0)
    return whole


def _rows(costs: Floats, names: list[str]) -> dict[str, dict[str, float]]:
    found = {a: dict(zip(names, row, strict=True)) for a, row in zip(names, costs.tolist(), strict=True)}
    for name in names:
        del found[name][name]
    return found


def parse_table(path: Path, content: bytes, cores: int, memory_id: int) -> FlitCostTable:
    """Reads a table: the pairs of `cores` cores, and of each core with the global memory.

    Raises `UserError` if `content` is not a table, a number is below 0 or infinite, or pairs are missing.
    """
    file, names = FlitCostFile(path, content), [*map(str, range(cores)), str(memory_id)]
    latency_ns = _matrix(path, "latency", file, names)
    return FlitCostTable(path, content, latency_ns, _matrix(path, "energy", file, names))


def _matrix(path: Path, kind: CostKind, file: FlitCostFile, names: Sequence[str]) -> Floats:
    """Returns the entries as [names, names], with 0 on the diagonal.

    A missing entry from the global memory is 0, too, because nothing depends on it.
    """
    found = np.full((len(names), len(names)), np.nan)
    for i, source in enumerate(names):
        row = file.row(kind, source)
        values = [row.get(to, math.nan) for to in names]
        if not _NUMBERS.issuperset(map(type, values)):
            raise next(file.number_error(kind, source, to, v) for to, v in row.items() if type(v) not in _NUMBERS)
        found[i] = values
    np.fill_diagonal(found, 0.0)
    missing = np.argwhere(np.isnan(found[:-1]))
    if len(missing):
        pairs = _and_more((f"{names[a]} to {names[b]}" for a, b in missing[:_SHOWN].tolist()), len(missing))
        raise UserError(
            f"network table {path}: no {kind} from {pairs}; the simulator would charge nothing for them: complete the "
            f"table for all {len(names) - 1} cores and the global memory ({names[-1]}), or leave "
            "network_config.net_config_file_path out for the built-in mesh"
        )
    wrong = np.argwhere((found < 0) | np.isposinf(found))
    if len(wrong):
        a, b = int(wrong[0, 0]), int(wrong[0, 1])
        raise file.number_error(kind, names[a], names[b], float(found[a, b]))
    found[-1] = np.where(np.isnan(found[-1]), 0.0, found[-1])
    return found


def _and_more(shown: Iterable[str], count: int) -> str:
    names = list(shown)
    return ", ".join(names) + (f" and {count - len(names)} more pairs" if count > len(names) else "")
