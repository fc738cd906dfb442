"""Builds small output directories by hand, independently of the compiler."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from raptor.target import encoding, isa
from raptor.target.isa import BY_NAME, RECORD, Records

XBAR = (8, 8)


def op(name: str, **operands: int) -> tuple[int, ...]:
    """Builds one record from operand names of the instruction table."""
    spec = BY_NAME[name]
    row = {"opcode": spec.opcode, **{spec.operand(key).slot: value for key, value in operands.items()}}
    return tuple(row.get(slot, 0) for slot in RECORD.names or ())


def stream(*rows: tuple[int, ...]) -> Records:
    return np.array(list(rows), RECORD)


def address(register: int, value: int) -> tuple[int, ...]:
    return op("sldi", rd=register, imm=value)


def place(
    name: str,
    shape: Sequence[int],
    at: int,
    *,
    axis: int = 0,
    tiles: list[Any] | None = None,
    coding: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An entry of memory.json: one whole-image tile at byte address `at` unless tiles are given."""
    rest = [n for k, n in enumerate(shape) if k != axis]
    rows = int(np.prod(rest[:-1])) if rest else 1
    whole = [{"channels": [0, shape[axis]], "rows": [0, rows], "address": at}]
    return {
        "name": name,
        "shape": list(shape),
        "image_shape": list(shape),
        "channel_axis": axis,
        "tiles": tiles if tiles is not None else whole,
        **({"coding": coding} if coding else {}),
    }


def coded(bits: int, dtype: str = "int8", **entries: Any) -> dict[str, Any]:
    """A coding of integers."""
    return {"kind": "int", "bits": bits, "dtype": dtype, **entries}


FLOAT32 = {"kind": "float", "bits": 32, "dtype": "float32"}
"""The coding of floats in a mixed program."""


@dataclass
class Builder:
    """The content of a directory; `write` makes the files, `files` may be changed before `seal` lists them."""

    cores: Sequence[Records]
    matrices: Mapping[int, Sequence[np.ndarray]] = field(default_factory=dict)
    inputs: Sequence[dict[str, Any]] = ()
    outputs: Sequence[dict[str, Any]] = ()
    constants: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    constants_at: int = 0
    size_bytes: int = 256
    local_bytes: int = 256
    bits: int = 8
    xbars: int = 64
    model: onnx.ModelProto | None = None
    probes: Sequence[dict[str, Any]] | None = None
    pim: bool = False
    npz: bool = False
    numbers: str = "float"
    files: dict[str, bytes] = field(default_factory=dict)

    def make(self) -> "Builder":
        """Fills `files` with everything but the manifest."""
        count = len(self.cores)
        groups = {f"core{i}": [1] * len(self.matrices.get(i, ())) for i in range(count)}
        self._json("config.json", {"core_cnt": count, "array_group_map": groups})
        self._json("arch.json", self._arch(count))
        self._json("memory.json", self._memory(count))
        if self.probes is not None:
            self._json("layers.json", {"version": 1, "probes": list(self.probes)})
        for i, records in enumerate(self.cores):
            if self.pim:
                self.files[f"core_{i}.pim"] = encoding.encode_pim(records)
            else:
                self.files[f"core_{i}.json"] = encoding.encode_json(records)
        for core, matrices in self.matrices.items():
            self._weights(core, matrices)
        buffer = io.BytesIO()
        empty = np.zeros(0, np.float32 if self.numbers == "float" else np.uint8)
        np.save(buffer, self.constants if len(self.constants) else empty)
        self.files["weights/constants.npy"] = buffer.getvalue()
        if self.model is not None:
            self.files["model.onnx"] = self.model.SerializeToString()
        return self

    def write(self, folder: Path) -> Path:
        if not self.files:
            self.make()
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        seal(folder, self.files, self.numbers)
        return folder

    def _json(self, name: str, value: Any) -> None:
        self.files[name] = json.dumps(value).encode()

    def _weights(self, core: int, matrices: Sequence[np.ndarray]) -> None:
        if not self.npz:
            self._json(f"weights/core_{core}_weights.json", {str(g): m.tolist() for g, m in enumerate(matrices)})
            return
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **{str(g): m for g, m in enumerate(matrices)})  # pyright: ignore[reportArgumentType]
        self.files[f"weights/core_{core}_weights.npz"] = buffer.getvalue()

    def _arch(self, count: int) -> dict[str, Any]:
        matrix = {"xbar_array_count": self.xbars, "xbar_size": list(XBAR), "cell_precision": self.bits}
        core = {"matrix_config": matrix}
        network = {"layout": [1, count]}
        return {"chip_config": {"core_cnt": count, "core_config": core, "network_config": network}}

    def _memory(self, count: int) -> dict[str, Any]:
        return {
            "version": 1,
            "element_bits": self.bits,
            "element_bytes": -(-self.bits // 8) if self.numbers == "float" else 1,
            "size_bytes": self.size_bytes,
            "local_bytes": [self.local_bytes] * count,
            "inputs": list(self.inputs),
            "constants": {"address": self.constants_at, "elements": len(self.constants)},
            "outputs": list(self.outputs),
        }


def seal(folder: Path, names: Mapping[str, bytes], numbers: str = "float") -> None:
    """Writes the manifest for files as they are now."""
    listed = {
        name: {
            "size_bytes": len((folder / name).read_bytes()),
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in names
    }
    manifest = {
        "version": 1,
        "tool": "hand",
        "numbers": numbers,
        "model": "hand",
        "options": {},
        "streams": ["json"],
        "weights": "json",
        "files": listed,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


__all__ = ["FLOAT32", "XBAR", "Builder", "address", "coded", "isa", "op", "place", "seal", "stream"]
