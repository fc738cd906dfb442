"""Every kind of input for a compiled random graph: right programs pass, unless the model itself makes no numbers."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from raptor.common.errors import UserError
from tests.all_graphs.builder import TOLERANCE
from tests.all_graphs.cases import Case
from tests.fuzz import graphs, programs
from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.tiny_models import Array, golden
from validator.execution.input_kinds import INPUT_KINDS, draw_values
from validator.execution.run import UNLIMITED
from validator.judge.judge_program import validate_program
from validator.load.output_directory import load_output
from validator.model.index_bounds import IndexBounds
from validator.options import ValidationSettings

_RECURRENT = ("RNN", "GRU", "LSTM")
_MOST = np.finfo(np.float32).max


def of_kind(case: Case, kind: str, seed: int) -> dict[str, Array]:
    """Returns inputs of a kind for a case. Integers stay between those that were drawn with the graph."""
    rng = np.random.default_rng(seed)
    return {name: _of_kind(kind, array, rng) for name, array in case.inputs.items()}


def _of_kind(kind: str, array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind == "f":
        return draw_values(kind, array.shape, None, rng).astype(array.dtype)
    bounds = IndexBounds(int(array.min()), int(array.max()))
    return draw_values(kind, array.shape, bounds, rng).astype(array.dtype)


def meanings(case: Case, kind: str, seed: int) -> tuple[dict[str, Array], bool, bool]:
    """Returns inputs of a kind, whether onnxruntime computes finite outputs from them, and whether all tensors are.

    What overflows inside may be dropped: by the largest of some numbers, a Relu, a gate. Then the outputs are finite by
    chance. Only a mask may be -inf; a maximum of such numbers alone is the lowest finite number in onnxruntime.
    """
    inputs = of_kind(case, kind, seed)
    try:
        every = golden(case.model, inputs, [o for node in case.model.graph.node for o in node.output if o])
    except Exception:  # onnxruntime refuses what some operator reads; its exceptions have no common base
        return inputs, False, False
    values = inputs | every
    if _feeds_recurrent(case, values):
        return inputs, False, False
    floats = [array for array in every.values() if array.dtype.kind == "f"]
    numbers = not any((np.isnan(array) | (array == np.inf) | (array == -_MOST)).any() for array in floats)
    outputs = {o.name: values[o.name] for o in case.model.graph.output if o.name in values}  # others are constants
    return inputs, numbers and _are_finite(outputs), _are_finite(every)


def _feeds_recurrent(case: Case, values: Mapping[str, Array]) -> bool:
    """Returns whether a recurrent layer reads an infinite input.

    onnxruntime's kernels of these layers clip a NaN inside of them to a finite number.
    """
    read = [i for node in case.model.graph.node if node.op_type in _RECURRENT for i in node.input if i in values]
    return not _are_finite({name: values[name] for name in read})


def _are_finite(values: Mapping[str, Array]) -> bool:
    return all(np.isfinite(array).all() for array in values.values() if array.dtype.kind == "f")


def wrong_kinds(case: Case, out: Path, seed: int) -> Iterator[tuple[str, str]]:
    """Yields the kinds of inputs on which a program fails, and what the verdict says."""
    program = load_output(out)
    for kind in INPUT_KINDS:
        inputs, has_meaning, by_layers = meanings(case, kind, seed)
        by_layers &= not program.delays  # tensors between layers are of several samples otherwise
        if not has_meaning or (kind != "masked" and not by_layers):
            continue
        try:
            report = validate_program(program, inputs, range(1), _settings(by_layers), None)
        except UserError as error:
            if "computes no finite number" not in str(error):
                raise
            continue  # a Resize by ONNX's own suite is a product with a matrix, where -inf times 0 is NaN
        if not report.passed:
            wrong = [c for c in (*(layer.comparison for layer in report.layers), *report.outputs) if not c.passed]
            yield kind, f"{report.first_deviation or ''}: {report.reason}: {wrong[0]}"


def _settings(layers: bool) -> ValidationSettings:
    return ValidationSettings(TOLERANCE, layers, "auto", "block", UNLIMITED)


MOST_NODES, MOST_INSTRUCTIONS = 12, 100_000


def case(rng: Draw, folder: Path) -> str:
    """Compiles the graph of a seed, and validates it on every kind of input."""
    drawn = graphs.made(rng.number, MOST_NODES)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # which prints the options that it adds
            program = graphs.compiled(drawn, folder)
    except UserError:
        return "refused"
    if program.report.instruction_count > MOST_INSTRUCTIONS:
        return "too long"
    out = program.save(folder / "out", stream_format="pim", weight_format="npz")
    for kind, fault in wrong_kinds(drawn, out, rng.number):
        inputs = of_kind(drawn, kind, rng.number)
        for name, array in inputs.items():
            np.save(folder / f"{name}.npy", array)
        raise BrokenError(f"{kind}: {fault}")
    return "right"


KINDS_OF_INPUTS = Part(
    "kinds", "random graphs on every kind of input", short=12, long=2000, case=case, prepare=programs.prepare
)
