"""Reads network tables of chips, and refuses incomplete ones with the reason.

For a pair that a table lacks, pimsim-nn counts no time, without a message. So a table must have every pair that a
program may use.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.common.decoding import json_decoder
from raptor.common.errors import UserError

Floats = npt.NDArray[np.float64]
Kind = Literal["latency", "energy"]

LIMIT_BYTES = 2**32
_SHOWN = 3


@dataclass(frozen=True, slots=True, eq=False)
class Table:
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

    def cost(self, kind: Kind, source: str, to: str) -> float | None:
        """Returns the entry of a pair, named as in the file (cores by number); None if a core is not on this chip."""
        matrix = self.latency_ns if kind == "latency" else self.energy_pj
        a, b = self._index(source), self._index(to)
        return None if a is None or b is None or a == b else float(matrix[a, b])

    def _index(self, name: str) -> int | None:
        """Returns the index of a core or of the global memory, whose name is below 0; None for another core."""
        count, core = len(self.latency_ns) - 1, int(name)
        return core if 0 <= core < count else count if core < 0 else None


class _File(msgspec.Struct):
    """The file before its rows are decoded, which happens one at a time: a table of 4000 cores has 300 MB."""

    latency: dict[str, msgspec.Raw]
    energy: dict[str, msgspec.Raw]


def parse_table(path: Path, content: bytes, cores: int, memory_id: int) -> Table:
    """Reads a table: the pairs of `cores` cores, and of each core with the global memory.

    Raises `UserError` if `content` is not a table, a number is below 0 or infinite, or pairs are missing.
    """
    try:
        file = json_decoder(_File).decode(content)
    except (msgspec.DecodeError, RecursionError) as e:
        raise UserError(f"network table {path}: expected the objects latency and energy: {e}") from e
    names = [*map(str, range(cores)), str(memory_id)]
    latency_ns = _matrix(path, "latency", file.latency, names)
    return Table(path, content, latency_ns, _matrix(path, "energy", file.energy, names))


def _matrix(path: Path, kind: Kind, rows: dict[str, msgspec.Raw], names: Sequence[str]) -> Floats:
    """Returns the entries as [names, names], with 0 on the diagonal.

    A missing entry from the global memory is 0, too, as nothing depends on it.
    """
    found = np.full((len(names), len(names)), np.nan)
    for i, source in enumerate(names):
        if source in rows:
            row = _row(path, kind, source, rows[source])
            found[i] = [row.get(to, math.nan) for to in names]
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
        a, b = wrong[0].tolist()
        raise UserError(f"network table {path}: {kind} from {names[a]} to {names[b]}: expected a number from 0")
    found[-1] = np.where(np.isnan(found[-1]), 0.0, found[-1])
    return found


def _row(path: Path, kind: Kind, source: str, text: msgspec.Raw) -> dict[str, float]:
    """Decodes the entries of one source. Raises `UserError` if they are not numbers."""
    try:
        return msgspec.json.decode(text, type=dict[str, float])
    except (msgspec.DecodeError, RecursionError) as e:
        raise UserError(f"network table {path}: {kind} from {source}: {e}") from e


def _and_more(shown: Iterable[str], count: int) -> str:
    names = list(shown)
    return ", ".join(names) + (f" and {count - len(names)} more pairs" if count > len(names) else "")
