"""Labelled data: an .npz file with inputs and labels, or a folder with an index. Sizes are checked before reading."""

import csv
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access

Array = npt.NDArray[Any]
LABELS_NAME = "y"
INDEX_FILE = "index.csv"
_MOST_BYTES = 8 * 2**30
_UNREADABLE = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError)


class InputShape(Protocol):
    """Name and shape of an input of a model or of a program."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, eq=False)
class LabelledData:
    """Samples: arrays [n, ...], keyed by input, and labels [n], or None if there are none.

    steps: length of the samples if these are sequences of steps of a model with `states`, else None. Arrays of inputs
    are then [n, steps, ...], those of states, their first values, [n, ...]; labels are [n], of the last steps, or
    [n, steps].
    """

    inputs: dict[str, Array]
    labels: npt.NDArray[np.int64] | None
    steps: int | None = None
    states: frozenset[str] = frozenset()

    @property
    def count(self) -> int:
        return len(next(iter(self.inputs.values())))

    def sample(self, number: int) -> dict[str, Array]:
        """Returns the inputs of a sample, for a sequence those of all its steps."""
        return {name: values[number] for name, values in self.inputs.items()}

    def list_steps(self, number: int) -> list[dict[str, Array]]:
        """Returns the inputs of each step of a sample; only the first one has states. Other samples have one step."""
        sample = self.sample(number)
        if self.steps is None:
            return [sample]
        first = {name: sample[name] for name in self.states & sample.keys()}
        steps = [{name: values[k] for name, values in sample.items() if name not in first} for k in range(self.steps)]
        return [steps[0] | first, *steps[1:]]

    @property
    def has_last_labels(self) -> bool:
        """True if each sequence has one label, for its last step: then only the scores of last steps count."""
        return self.steps is not None and self.labels is not None and self.labels.ndim == 1

    @property
    def scores(self) -> int:
        """Number of steps whose scores count."""
        return self.count if self.steps is None or self.has_last_labels else self.count * self.steps


def digest_samples(data: LabelledData) -> set[bytes]:
    """Returns a digest of the inputs of each sample, whatever their order; equal samples have one digest."""
    return set(digest_each(data))


def digest_each(data: LabelledData) -> list[bytes]:
    """Returns the digest of the inputs of each sample, in their order."""
    found: list[bytes] = []
    for number in range(data.count):
        digest = sha256()
        for name, values in sorted(data.sample(number).items()):
            digest.update(name.encode() + np.ascontiguousarray(values, np.float64).tobytes())
        found.append(digest.digest())
    return found


class _UnfitDataError(Exception):
    """Data that cannot be read, or that do not fit: the path, and what is wrong."""


def read_labelled_data(
    path: Path,
    places: Sequence[InputShape],
    most: int | None = None,
    *,
    option: str = "--data",
    states: Collection[str] = (),
) -> LabelledData:
    """Reads the first `most` samples. Raises `UserError` that names `option` for data that do not fit the inputs.

    An .npz file has an array `x` for the one input of the model, or arrays by the names of its inputs, and labels `y`.
    A folder has `index.csv` with lines `FILE,LABEL`; each file is an .npy array for the one input. `states`: inputs
    that stay on the chip, whose first values an .npz file may have, and which are zero otherwise. Arrays of the other
    inputs may then have a second dimension, the steps of sequences.
    """
    try:
        return _read_samples(path, places, most, frozenset(states))
    except _UnfitDataError as error:
        raise UserError(f"{option} {error}") from None


def _read_samples(path: Path, places: Sequence[InputShape], most: int | None, states: frozenset[str]) -> LabelledData:
    given = [place for place in places if place.name not in states]
    arrays = _from_folder(path, given, most) if path.is_dir() else _from_npz(path, given, most, states)
    labels, steps = arrays.pop(LABELS_NAME, None), _count_steps(path, given, arrays) if states else None
    inputs = {
        place.name: _shaped(path, place, arrays[place.name], None if place.name in states else steps)[:most]
        for place in places
        if place.name in arrays
    }
    counts = {name: len(values) for name, values in inputs.items()}
    counts |= {} if labels is None else {LABELS_NAME: len(labels)}
    if len(set(counts.values())) != 1 or not next(iter(counts.values())):
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        _refuse(path, f"all arrays need as many samples, at least one, found {told}")
    return LabelledData(inputs, None if labels is None else _labels(path, labels, steps), steps, states)


def _count_steps(path: Path, places: Sequence[InputShape], arrays: Mapping[str, Array]) -> int | None:
    """Returns the length of the sequences if all arrays have a dimension more than samples of one step, else None."""
    counts = {place.name: arrays[place.name].shape[1] for place in places if _is_sequence(place, arrays[place.name])}
    if not counts:
        return None
    if len(counts) < len(places) or len(set(counts.values())) > 1 or not min(counts.values()):
        told = ", ".join(f"{counts.get(place.name, 'none')} of {place.name!r}" for place in places)
        _refuse(path, f"the sequences of all inputs need as many steps, at least one, found {told}")
    return next(iter(counts.values()))


def _is_sequence(place: InputShape, array: Array) -> bool:
    return not _fits(place, array.shape[1:]) and _fits(place, array.shape[2:])


def _fits(place: InputShape, shape: tuple[int, ...]) -> bool:
    """Checks whether arrays of a shape are values of an input; their first axis may be missing if it is a batch."""
    return shape == place.shape or (place.shape[:1] == (1,) and shape == place.shape[1:])


def _from_npz(path: Path, places: Sequence[InputShape], most: int | None, states: frozenset[str]) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            wanted = {p.name: "x" if len(places) == 1 and p.name not in members else p.name for p in places}
            wanted |= {name: name for name in sorted(states & members.keys())}
            for name in wanted.values():
                if name not in members:
                    _refuse(path, f"no array {name!r}; it has {', '.join(sorted(members)) or 'none'}")
            found = {name: _member(path, archive, members[key])[:most] for name, key in wanted.items()}
            return found | (
                {LABELS_NAME: _member(path, archive, members[LABELS_NAME])[:most]} if LABELS_NAME in members else {}
            )
    except FileNotFoundError:
        _refuse(path, "no such file or folder")
    except _UNREADABLE as e:
        _refuse(path, f"not an .npz file: {e}")


def _member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    if dtype.kind not in "fiub":
        _refuse(path, f"{member.filename} holds {dtype}, expected numbers")
    size = math.prod(shape) * dtype.itemsize
    if size > min(_MOST_BYTES, member.file_size):
        _refuse(path, f"{member.filename} says that it has {size} bytes, more than the file, or than {_MOST_BYTES}")
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _from_folder(folder: Path, places: Sequence[InputShape], most: int | None) -> dict[str, Array]:
    if len(places) != 1:
        _refuse(folder, f"a folder is for models of one input, this one has {len(places)}; use an .npz file")
    text = file_access.read_bytes(folder, INDEX_FILE, limit_bytes=2**30).decode("utf-8", errors="replace")
    lines = [line for line in csv.reader(text.splitlines()) if line][:most]
    if not lines or any(len(line) != 2 for line in lines):
        _refuse(folder, f"{INDEX_FILE}: expected lines FILE,LABEL")
    try:
        labels = np.array([int(label) for _, label in lines], np.int64)
    except ValueError as e:
        _refuse(folder, f"{INDEX_FILE}: {e}")
    images = [_one(folder, name, places[0]) for name, _ in lines]
    return {places[0].name: np.stack(images), LABELS_NAME: labels}


def _one(folder: Path, name: str, place: InputShape) -> Array:
    size = math.prod(place.shape) * 8 + 2**12
    try:
        content = file_access.read_bytes(folder, name, limit_bytes=size)
        array = np.lib.format.read_array(BytesIO(content), allow_pickle=False)
    except (ValueError, OSError) as e:
        _refuse(folder / name, f"not an .npy file: {e}")
    if array.size != math.prod(place.shape):
        _refuse(folder / name, f"shape {array.shape}, but the input has {place.shape}")
    return array.reshape(place.shape)


def _shaped(path: Path, place: InputShape, array: Array, steps: int | None) -> Array:
    """Returns samples as [n, *shape], sequences as [n, steps, *shape]."""
    if array.dtype.kind not in "fiub":
        _refuse(path, f"{place.name!r} holds {array.dtype}, expected numbers")
    outer = 1 if steps is None else 2
    if not _fits(place, array.shape[outer:]):
        _refuse(path, f"{place.name!r} has samples of shape {array.shape[1:]}, but the input has {place.shape}")
    shaped = array.reshape(*array.shape[:outer], *place.shape)
    with np.errstate(over="ignore"):  # infinity then, which users of the samples refuse
        return shaped.astype(np.float32) if shaped.dtype.kind == "f" else shaped


def _labels(path: Path, labels: Array, steps: int | None) -> npt.NDArray[np.int64]:
    is_of_steps = steps is not None and labels.shape[1:] == (steps,)
    if (labels.ndim != 1 and not is_of_steps) or labels.dtype.kind not in "iu":
        of = "sample" if steps is None else f"sequence, or each of its {steps} steps"
        _refuse(
            path, f"labels {LABELS_NAME}: expected a class number for each {of}, found {labels.dtype} {labels.shape}"
        )
    if (negative := np.argwhere(labels < 0)).size:
        first = tuple(negative[0])
        _refuse(path, f"labels {LABELS_NAME}: {labels[first]} of sample {first[0]}: classes are numbered from 0")
    return labels.astype(np.int64)


def _refuse(path: Path, why: str) -> NoReturn:
    raise _UnfitDataError(f"{path}: {why}")
