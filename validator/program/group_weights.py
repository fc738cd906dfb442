"""Reads the matrices of every array group, from JSON or .npz files, and checks that they fit their crossbars."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files
from raptor.output.files import OutputManifest
from validator.program.npy import FLOAT_TYPES, INTEGER_TYPES, read_array_data, read_header
from validator.program.program import GroupWeights, Matrix

_FILE_LIMIT_BYTES = 16 * 2**30
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError)
"""Errors that zipfile raises for broken archives."""


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """Size of the largest matrix that an array group can hold."""

    rows: int
    cols: int


def load_weights(folder: Path, manifest: OutputManifest, limits: list[list[GroupLimit]]) -> GroupWeights:
    """Reads the matrices of all cores, one per group. Raises `UserError` for missing, extra or oversized matrices."""
    matrices: list[Matrix] = []
    known: dict[bytes, Matrix] = {}
    for core, groups in enumerate(limits):
        matrices += _load_core(folder, manifest, core, groups, known)
    sizes = np.array([m.size for m in matrices], np.int64)
    return GroupWeights(
        values=_joined(matrices, integers=manifest.numbers != "float"),
        offset=np.cumsum(sizes) - sizes,
        rows=np.array([m.shape[0] for m in matrices], np.int64),
        cols=np.array([m.shape[1] for m in matrices], np.int64),
        first=np.cumsum([0, *map(len, limits)], dtype=np.int64),
    )


def _joined(matrices: list[Matrix], *, integers: bool) -> Matrix:
    """Concatenates the matrices. Integers have one type: int8 if all fit, else int16."""
    if not integers:
        return np.concatenate([m.ravel() for m in matrices]) if matrices else np.zeros(0, np.float32)
    small = np.iinfo(np.int8)
    fit = all(small.min <= m.min() and m.max() <= small.max for m in matrices)
    dtype = np.int8 if fit else np.int16
    return np.concatenate([np.zeros(0, dtype), *(m.ravel().astype(dtype, copy=False) for m in matrices)])


def _load_core(
    folder: Path, manifest: OutputManifest, core: int, groups: list[GroupLimit], known: dict[bytes, Matrix]
) -> list[Matrix]:
    npz, text = files.weights_name(core, "npz"), files.weights_name(core, "json")
    name = npz if npz in manifest.files else text
    where = str(folder / name)
    if name not in manifest.files:
        if groups:
            raise UserError(f"{where}: missing, but core {core} has {len(groups)} array groups")
        return []
    content, integers = file_access.read_bytes(folder, name, limit_bytes=_FILE_LIMIT_BYTES), manifest.numbers != "float"
    if name == npz:
        return _from_npz(content, groups, where, core, integers)
    return _from_json(content, groups, where, core, integers, known)


def _check_names(found: set[str], groups: list[GroupLimit], where: str, core: int) -> None:
    wanted = {str(g) for g in range(len(groups))}
    if found == wanted:
        return
    missing, extra = sorted(wanted - found, key=int), sorted(found - wanted)
    fault = f"no matrix for array group {missing[0]}" if missing else f"a matrix for {extra[0]!r:.40}, not a group"
    raise UserError(f"{where}: {fault} of core {core} ({files.CONFIG} has {len(groups)} groups)")


def _check_shape(shape: tuple[int, ...], limit: GroupLimit, where: str) -> None:
    if len(shape) != 2 or not (0 < shape[0] <= limit.rows and 0 < shape[1] <= limit.cols):
        raise UserError(f"{where}: a matrix of shape {shape} does not fit {limit.rows} rows and {limit.cols} columns")


def _from_json(
    content: bytes, groups: list[GroupLimit], where: str, core: int, integers: bool, known: dict[bytes, Matrix]
) -> list[Matrix]:
    """Parses the matrices of a core. `known`: by text, as replicas of a layer have the same on many cores."""
    try:
        raw = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as e:
        raise UserError(f"{where}: expected an object of matrices: {e}") from e
    _check_names(set(raw), groups, where, core)
    found: list[Matrix] = []
    for g, limit in enumerate(groups):
        text, place = bytes(raw[str(g)]), f"{where}, group {g}"
        if text not in known:
            known[text] = _json_matrix(text, place, integers)
        _check_shape(known[text].shape, limit, place)
        found.append(known[text])
    return found


def _json_matrix(text: bytes, where: str, integers: bool) -> Matrix:
    try:
        rows = msgspec.json.decode(text, type=list[list[int]] if integers else list[list[float]])
    except (msgspec.DecodeError, RecursionError) as e:
        raise UserError(f"{where}: expected an object of matrices: {e}") from e
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise UserError(f"{where}: expected rows of one length, found lengths {sorted(widths)[:4]}")
    shape = len(rows), widths.pop()
    if not shape[1]:
        return np.zeros(shape, np.int16 if integers else np.float32)
    if integers:
        return _int16(rows, shape, where)
    with np.errstate(over="ignore"):
        return _finite(np.array(rows, np.float64).astype(np.float32), where)


def _int16(rows: Sequence[Sequence[float]], shape: tuple[int, int], where: str) -> Matrix:
    limits = np.iinfo(np.int16)
    try:
        weights = np.fromiter(chain.from_iterable(rows), np.int64, shape[0] * shape[1])
    except OverflowError:
        weights = None
    if weights is None or weights.min() < limits.min or weights.max() > limits.max:
        raise UserError(f"{where}: holds a weight outside {limits.min}..{limits.max}, the range of int16")
    return weights.astype(np.int16).reshape(shape)


def _from_npz(content: bytes, groups: list[GroupLimit], where: str, core: int, integers: bool) -> list[Matrix]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            _check_names({n.removesuffix(".npy") for n in names}, groups, where, core)
            if len(set(names)) != len(names) or not all(n.endswith(".npy") for n in names):
                raise UserError(f"{where}: expected one .npy member per group")
            return [_npz_matrix(archive, g, limit, f"{where}, group {g}", integers) for g, limit in enumerate(groups)]
    except ZIP_ERRORS as e:
        raise UserError(f"{where}: not a .npz file: {e}") from e


def _npz_matrix(archive: zipfile.ZipFile, group: int, limit: GroupLimit, where: str, integers: bool) -> Matrix:
    """Reads a matrix. The header is checked before data are unpacked, so a small file cannot claim much memory."""
    with archive.open(f"{group}.npy") as stream:
        shape, dtype = read_header(stream, where, INTEGER_TYPES if integers else FLOAT_TYPES)
        _check_shape(shape, limit, where)
        return _finite(read_array_data(stream, shape, dtype, where), where)


def _finite(matrix: Matrix, where: str) -> Matrix:
    if not np.isfinite(matrix).all():
        raise UserError(f"{where}: holds NaN or infinity, or a number beyond float32")
    return matrix


def no_weights(cores: int) -> GroupWeights:
    """Returns the weights of a program whose cores have no array groups."""
    none = np.zeros(0, np.int64)
    return GroupWeights(np.zeros(0, np.float32), none, none, none, np.zeros(cores, np.int64))
