"""Calibration samples: seeded random inputs, or arrays of an .npz file whose headers are checked before reading."""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto, helper
from onnxruntime.quantization import CalibrationDataReader

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_name as spelled
from raptor.common.option_spelling import spell_option
from raptor.frontend.proto.model_checks import collect_inputs
from validator.model.index_bounds import IndexBounds, find_index_bounds

Array = npt.NDArray[Any]
Sample = dict[str, Array]
MOST_BYTES = 8 * 2**30
"""Largest array that is read, in bytes; an element counts at least 4."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class SampledInput:
    """A model input of fixed shape. `bounds`: range of its random values, None for standard normal values."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bounds: IndexBounds | None


class SampleReader(CalibrationDataReader):
    """Feeds samples to onnxruntime's calibration, one after the other."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Sample | None:  # pyright: ignore[reportIncompatibleMethodOverride] it ends with None
        return next(self._left, None)


def read_sampled_inputs(proto: ModelProto) -> tuple[SampledInput, ...]:
    """Returns the inputs of a model. Inputs used as indices are bounded by the sizes of the tables that they index."""
    chosen = find_index_bounds(proto)
    return tuple(_input(value, chosen.get(name)) for name, value in collect_inputs(proto).items())


def _input(value: ValueInfoProto, chosen: IndexBounds | None) -> SampledInput:
    kind = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    bounds = chosen
    if dtype.kind in "iub":
        own = (
            IndexBounds(0, 1) if dtype.kind == "b" else IndexBounds(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        )
        # Bytes are images; other integers are ids, lengths and flags, of which 0 and 1 are the usual ones.
        bounds = own.intersect(chosen or (own if dtype.itemsize == 1 else IndexBounds(0, 1)))
    return SampledInput(value.name, tuple(d.dim_value for d in kind.shape.dim), dtype, bounds)


def random_samples(inputs: Sequence[SampledInput], seed: int, count: int) -> list[Sample]:
    """Returns standard normal inputs, or uniform ones within bounds; sample i has seed `seed` + i, as in `validate`."""
    return [_random_sample(inputs, seed + i) for i in range(count)]


def _random_sample(inputs: Sequence[SampledInput], seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    return {i.name: _random(i, rng).astype(i.dtype) for i in inputs}


def _random(wanted: SampledInput, rng: np.random.Generator) -> Array:
    if wanted.bounds is None:
        return rng.standard_normal(wanted.shape, dtype=np.float32)
    if wanted.dtype.kind in "iub":
        return rng.integers(*wanted.bounds, wanted.shape, endpoint=True)
    return rng.uniform(*wanted.bounds, wanted.shape)


def read_samples(path: Path, inputs: Sequence[SampledInput], count: int | None) -> list[Sample]:
    """Reads the first `count` samples (None: all) of an .npz file, whose arrays have the names of the inputs.

    The array of the only input may also be called `x`.
    An array has the shape of the input, or one more leading axis, or a multiple of the batch size in its first axis.
    Raises `UserError` for other shapes, and for numbers that are not finite or that the input's type cannot hold.
    """
    arrays = _read(path, inputs)
    split = {i.name: _split(path, i, arrays[i.name], count) for i in inputs}
    counts = {name: len(found) for name, found in split.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{n} of '{name}'" for name, n in counts.items())
        raise UserError(f"{spell_option('data', path)}: all inputs need as many samples, found {told}")
    return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]


def _read(path: Path, inputs: Sequence[SampledInput]) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            if len(inputs) == 1 and "x" in members:  # as for `raptor accuracy`
                members.setdefault(inputs[0].name, members["x"])
            _check_names(path, members, inputs)
            return {i.name: _read_array(path, archive, members[i.name], i) for i in inputs}
    except FileNotFoundError:
        raise UserError(f"{spell_option('data', path)}: no such file") from None
    except _UNREADABLE as error:
        raise UserError(f"{spell_option('data', path)}: not a .npz file: {error}") from None


def _check_names(path: Path, members: Mapping[str, Any], inputs: Sequence[SampledInput]) -> None:
    missing = [i.name for i in inputs if i.name not in members]
    if missing:
        there = ", ".join(members) or "none"
        raise UserError(f"{spell_option('data', path)}: nothing for input '{missing[0]}'; its arrays: {there}")


def _read_array(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, wanted: SampledInput
) -> npt.NDArray[Any]:
    """Reads an array after checking that its header fits the input."""
    with archive.open(member) as stream:
        shape, dtype = _header(stream)
        if dtype.kind not in "fiub":
            raise UserError(f"{spell_option('data', path)}: '{wanted.name}' holds {dtype}, expected numbers")
        if math.prod(shape) * max(dtype.itemsize, 4) > MOST_BYTES:
            raise UserError(
                f"{spell_option('data', path)}: '{wanted.name}' {shape} is larger than {MOST_BYTES >> 30} GiB"
            )
        _sample_count(path, wanted, shape)
        if math.prod(shape) * dtype.itemsize > member.file_size:
            raise UserError(f"{spell_option('data', path)}: '{wanted.name}' {shape} needs more bytes than the file has")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: "IO[bytes]") -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _sample_count(path: Path, wanted: SampledInput, shape: tuple[int, ...]) -> int:
    """Returns the number of samples in an array of this shape. Raises `UserError` if the shape fits no number."""
    if shape == wanted.shape:
        return 1
    if shape[1:] == wanted.shape and shape[0]:
        return shape[0]
    batch, *rest = wanted.shape or (0,)
    if shape and list(shape[1:]) == rest and batch and shape[0] and shape[0] % batch == 0:
        return shape[0] // batch
    sizes = ", ".join(map(str, wanted.shape))
    raise UserError(
        f"{spell_option('data', path)}: '{wanted.name}' has shape {shape}, expected ({sizes}) for one sample, "
        f"or more of them in the first axis; {spelled('shapes')} gives the model another shape"
    )


def check_samples(path: Path, inputs: Sequence[SampledInput], samples: Sequence[Mapping[str, Array]]) -> list[Sample]:
    """Returns samples of a file in the types of the inputs. Raises `UserError` as `read_samples` does."""
    split = {i.name: convert_values(path, i, np.stack([sample[i.name] for sample in samples])) for i in inputs}
    return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]


def _split(path: Path, wanted: SampledInput, array: npt.NDArray[Any], count: int | None) -> list[Array]:
    count_of_file = _sample_count(path, wanted, array.shape)
    return list(convert_values(path, wanted, array.reshape(count_of_file, *wanted.shape)[:count]))


def convert_values(path: Path, wanted: SampledInput, values: Array) -> Array:
    """Returns samples [n, ...] of a file in the type of an input.

    Raises `UserError` for numbers that are not finite or that the type cannot hold.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.ascontiguousarray(values, wanted.dtype)
    if wanted.dtype.kind in "iub":
        bad = int(np.count_nonzero(found.astype(np.float64) != values.astype(np.float64)))
        if bad:
            numbers = f"{bad} of {found.size} numbers of '{wanted.name}'"
            raise UserError(
                f"{spell_option('data', path)}: {numbers} are no {wanted.dtype.name}, which the model takes"
            )
        return found
    bad = int(np.count_nonzero(~np.isfinite(found)))
    if bad:
        raise UserError(
            f"{spell_option('data', path)}: {bad} of {found.size} numbers of '{wanted.name}' are not finite"
        )
    return found
