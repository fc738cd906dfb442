"""Inputs of a run: from files or arrays, or seeded random numbers."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.arguments import parse_dict
from raptor.output.files import TensorPlace
from raptor.target.tensor_layout import Floats
from validator.execution.input_kinds import draw_values
from validator.model.definition.evaluator import ModelDefinition
from validator.model.definition.exact_values import code_limits, is_codes
from validator.model.golden import GoldenModel
from validator.model.index_bounds import NO_BOUNDS, IndexBounds
from validator.model.node import Array
from validator.program.coding import encode, holds_floats, value_range

GivenInputs = Sequence[str] | Mapping[str, Array] | Callable[[int], Mapping[str, Array]]
"""Inputs as files, as arrays by name, or as a function from a sample's number to arrays; empty for random numbers."""


class NamedInput(Protocol):
    """An input of a model, known by its name."""

    @property
    def name(self) -> str: ...


def following_numbers(given: GivenInputs, numbers: Sequence[int], number: int, count: int) -> list[int]:
    """Returns the numbers of the `count` samples after sample `number`; after the last one, of new samples if any."""
    after = [*numbers[numbers.index(number) + 1 :]]
    more = [max(numbers) + 1 + k for k in range(count)] if callable(given) or not given else [*numbers] * count
    return (after + more)[:count]


def inputs_for_sample(given: GivenInputs, number: int) -> Sequence[str] | Mapping[str, Array]:
    """Returns the inputs that are given for one sample."""
    return given(number) if callable(given) else given


def make_inputs(
    places: Sequence[TensorPlace],
    golden: GoldenModel,
    given: Sequence[str] | Mapping[str, Array],
    seed: int,
    bounds: Mapping[str, IndexBounds] = NO_BOUNDS,
) -> dict[str, Floats]:
    """Returns one array for every input of the model.

    `given`: arrays by name, or files, each `FILE` or `NAME=FILE`; .npy and .pb hold one array, .npz several by name.
    Without any, random numbers from `seed` are used: standard normal, or uniform within `bounds` or the range of an
    integer type. Values are rounded to the model's element type, so that the program and onnxruntime get the same.
    Raises `UserError` for unreadable files, unknown names, shapes other than the compiled ones, and inputs that became
    constants when the model was compiled.
    """
    _no_constants(given, golden)
    if isinstance(given, Mapping):
        arrays = check_named_arrays(places, given)
    elif given:
        arrays = read_input_files(places, given)
    else:
        arrays = random_inputs(places, seed, bounds)
    return {place.name: _fit(arrays, place, golden) for place in places}


def random_inputs(
    places: Sequence[TensorPlace], seed: int, bounds: Mapping[str, IndexBounds] = NO_BOUNDS
) -> dict[str, Array]:
    """Returns random numbers for every input: standard normal, or uniform within `bounds` or the integers' range."""
    rng = np.random.default_rng(seed)
    return {place.name: _random(place, rng, bounds.get(place.name)) for place in places}


def _random(place: TensorPlace, rng: np.random.Generator, bounds: IndexBounds | None) -> Array:
    """Returns standard normal numbers, or uniform ones within the bounds or the range of the integer type."""
    if place.coding is None or holds_floats(place.coding):
        if bounds is not None:
            return rng.uniform(*bounds, place.shape).astype(np.float32)
        return rng.standard_normal(place.shape, dtype=np.float32)
    taken = IndexBounds(*value_range(place.coding))
    return rng.integers(*(taken if bounds is None else taken.intersect(bounds)), place.shape, endpoint=True)


def draw_inputs(
    kind: str, places: Sequence[TensorPlace], seed: int, bounds: Mapping[str, IndexBounds] = NO_BOUNDS
) -> dict[str, Array]:
    """Returns numbers of a kind (`input_kinds`) for every input, within `bounds` or the range of integers."""
    rng = np.random.default_rng(seed)
    return {place.name: draw_values(kind, place.shape, _bounds_of(place, bounds), rng) for place in places}


def _bounds_of(place: TensorPlace, bounds: Mapping[str, IndexBounds]) -> IndexBounds | None:
    """Returns the range of the values of an input; None for floats without bounds."""
    own = None if place.coding is None or holds_floats(place.coding) else IndexBounds(*value_range(place.coding))
    chosen = bounds.get(place.name)
    return own.intersect(chosen) if own and chosen else own or chosen


def integer_input_names(places: Sequence[TensorPlace]) -> list[str]:
    """Returns the names of the inputs of integers and booleans."""
    return [place.name for place in places if not holds_floats(place.coding)]


def make_typed_inputs(
    places: Sequence[TensorPlace],
    definition: ModelDefinition,
    given: Sequence[str] | Mapping[str, Array],
    seed: int,
    bounds: Mapping[str, IndexBounds] = NO_BOUNDS,
) -> dict[str, Array]:
    """Returns one array for every input of an integer program, in the type of the model.

    Without given inputs, numbers from `seed` cover all codes: every integer of the type or, for an input that the model
    quantises, the real numbers over the range of its codes. Inputs with `bounds` stay within them.
    """
    if given:
        arrays = check_named_arrays(places, given) if isinstance(given, Mapping) else read_input_files(places, given)
    else:
        rng = np.random.default_rng(seed)
        arrays = {place.name: _codes(place, definition, rng, bounds.get(place.name)) for place in places}
    return {place.name: _typed(arrays, place, definition.input_type(place.name)) for place in places}


def _codes(
    place: TensorPlace, definition: ModelDefinition, rng: np.random.Generator, bounds: IndexBounds | None
) -> Array:
    dtype = definition.input_type(place.name)
    if is_codes(np.zeros(0, dtype)):
        taken = IndexBounds(*(code_limits(dtype) if place.coding is None else value_range(place.coding)))
        low, high = taken if bounds is None else taken.intersect(bounds)
        return rng.integers(low, high, place.shape, endpoint=True).astype(dtype)
    steps = definition.find_input_target(place.name, place.shape)
    if steps is None:
        return _random(place, rng, bounds)
    low, high = (limit - steps.zero for limit in code_limits(steps.dtype))
    codes = low + (high - low) * rng.random(place.shape)
    return (codes * steps.scale).astype(np.float32)


def _typed(arrays: dict[str, Array], place: TensorPlace, dtype: "np.dtype[Any]") -> Array:
    array = _shaped(arrays, place)
    typed = array.astype(dtype)
    if dtype.kind != "f" and not np.array_equal(typed.astype(np.float64), array.astype(np.float64)):
        raise UserError(f"{spell_option('inputs')}: {place.name!r} holds numbers that are no {dtype.name}")
    return typed


def _no_constants(given: Sequence[str] | Mapping[str, Array], golden: GoldenModel) -> None:
    names = given if isinstance(given, Mapping) else [g.partition("=")[0] for g in given if not Path(g).exists()]
    for name in names:
        if name in golden.constants:
            value = golden.constants[name].tolist()
            raise UserError(f"input {name!r} is the constant {value} since the model was compiled (--set)")


def check_named_arrays(places: Sequence[NamedInput], given: object) -> dict[str, Array]:
    """Returns the inputs that a caller passes as arrays of numbers.

    Raises `UserError` unless they are a mapping of known names to numbers; shapes are not checked.
    """
    entries = parse_dict("inputs", given, "arrays by name of the input")
    names = sorted(place.name for place in places)
    if unknown := sorted(set(entries) - set(names)):
        raise UserError(f"{unknown[0]!r} is no input of the model; its inputs: {', '.join(names)}")
    return {name: _numbers(name, value) for name, value in entries.items()}


def _numbers(name: str, value: Any) -> Array:
    try:
        array = np.asarray(value)
    except Exception as e:  # an object of any class may be passed, and raise anything
        raise UserError(f"input {name!r}: cannot be made an array: {e}") from e
    _check_numbers(name, array)
    return array


def _check_numbers(name: str, array: Array) -> None:
    # Types that are not numpy's own, such as bfloat16, count as void.
    if array.dtype.kind not in "fiub" and (array.dtype.kind != "V" or array.dtype.type is np.void):
        raise UserError(f"{spell_option('inputs')}: {name!r} holds {array.dtype}, expected numbers")


def _fit(arrays: dict[str, Array], place: TensorPlace, golden: GoldenModel) -> Floats:
    array = _shaped(arrays, place)
    if not holds_floats(place.coding):
        assert place.coding is not None
        return encode(array, place.coding, f"input {place.name!r}").astype(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(golden.input_dtype(place.name)).astype(np.float32)


def _shaped(arrays: dict[str, Array], place: TensorPlace) -> Array:
    """Returns the array of an input. Raises `UserError` if it is missing, or of another shape or type."""
    array = arrays.get(place.name)
    if array is None:
        raise UserError(f"{spell_option('inputs')}: nothing for input {place.name!r}")
    if array.shape != place.shape:
        fault = f"{place.name!r} was compiled for {list(place.shape)}, got {list(array.shape)}"
        raise UserError(f"{spell_option('inputs')}: {fault}")
    _check_numbers(place.name, array)
    return array


def read_input_files(places: Sequence[NamedInput], given: Sequence[str]) -> dict[str, Array]:
    """Reads arrays for the inputs from files, each `FILE` or `NAME=FILE`. Raises `UserError` for unknown names."""
    names = {place.name for place in places}
    only = places[0].name if len(places) == 1 else None
    arrays: dict[str, Array] = {}
    for argument in given:
        name, path = _split(argument, names)
        found = _read(path)
        for key, array in found.items():
            target = name or (key if key in names else only if len(found) == 1 else None)
            if target is None:
                known = ", ".join(sorted(names))
                raise UserError(
                    f"{spell_option('inputs', argument)}: {key!r} is no input of the model; its inputs: {known}"
                )
            if target in arrays:
                raise UserError(f"{spell_option('inputs', argument)}: {target!r} is given twice")
            arrays[target] = array
    return arrays


def _split(argument: str, names: set[str]) -> tuple[str | None, Path]:
    """Splits NAME=FILE if there is such an input; else it is a file, whose name may contain an equals sign."""
    name, equals, rest = argument.partition("=")
    if equals and name in names:
        return name, Path(rest)
    if equals and not Path(argument).exists():
        raise UserError(
            f"{spell_option('inputs', argument)}: no input {name!r}; the inputs: {', '.join(sorted(names))}"
        )
    return None, Path(argument)


def _read(path: Path) -> dict[str, Array]:
    readers = {".npy": _read_npy, ".npz": _read_npz, ".pb": _read_pb}
    reader = readers.get(path.suffix)
    if reader is None:
        raise UserError(f"{spell_option('inputs', path)}: expected a .npy, .npz or .pb file")
    try:
        return reader(path.read_bytes())
    except OSError as e:
        raise UserError(f"{spell_option('inputs', path)}: {e.strerror or e}") from e
    except MemoryError:
        raise
    except Exception as e:  # exceptions of numpy, zipfile, zlib and the tokenizer of headers have no common base
        raise UserError(f"{spell_option('inputs', path)}: cannot be read: {e}") from e


def _read_npy(content: bytes) -> dict[str, Array]:
    return {"": np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)}


def _read_npz(content: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("not a .npz file")
        return {key: archive[key] for key in archive.files}


def _read_pb(content: bytes) -> dict[str, Array]:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(content)
        if tensor.data_location != onnx.TensorProto.DEFAULT:
            raise ValueError("its numbers are in another file")
        return {tensor.name: numpy_helper.to_array(tensor)}
    except (DecodeError, LookupError, TypeError) as e:
        raise ValueError(f"not an ONNX tensor: {e}") from e
