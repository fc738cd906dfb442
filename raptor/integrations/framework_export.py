"""Common parts of the integrations of PyTorch and JAX: errors of exporters, and the comparison in two steps."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from raptor.api import Program
from raptor.common.errors import UserError
from raptor.common.optional_packages import require_packages
from raptor.common.package_clashes import require_own_packages
from raptor.integrations.onnxruntime_session import InferenceSession

if TYPE_CHECKING:
    from onnx import ModelProto

    from validator.judge.comparison import TensorComparison

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class FrameworkComparison:
    """Two comparisons for each output of a model, in the order of the outputs.

    `export`: onnxruntime on the exported model, against the framework. An error here is the exporter's.
    `compiler`: the instruction streams, against onnxruntime on the exported model. An error here is RAPTOR's.
    """

    export: "tuple[TensorComparison, ...]"
    compiler: "tuple[TensorComparison, ...]"

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.export + self.compiler)

    def __str__(self) -> str:
        rows = zip(self.export, self.compiler, strict=True)
        return "\n".join(f"{a.name}: {_shown('export', a)}, {_shown('compiler', b)}" for a, b in rows)


def _shown(step: str, found: "TensorComparison") -> str:
    return f"{step} {'ok' if found.passed else 'differs'} ({found.max_relative:.1e})"


@contextmanager
def wrap_export_errors(exporter: str, *packages: str) -> Generator[None]:
    """Converts any exception of an exporter in the block to a `UserError` with the root cause."""
    try:
        with require_packages(exporter, *packages):
            yield
    except UserError:
        raise
    except Exception as e:
        cause: BaseException = e
        while cause.__cause__ is not None:
            cause = cause.__cause__
        first = next(iter(str(cause).strip().splitlines()), "")
        raise UserError(f"{exporter} does not export it: {type(cause).__name__}: {first}") from e


def flatten_arrays(what: str, value: object) -> list[Any]:
    """Flattens nested tuples, lists and mappings of arrays, in order. None is dropped, as exporters do.

    Raises `UserError` that names `what` for anything else.
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        value = list(cast(Mapping[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return [array for part in cast(Sequence[Any], value) for array in flatten_arrays(what, part)]
    if not hasattr(value, "shape"):
        raise UserError(f"{what}: expected arrays, or tuples of arrays; got an object of type {type(value).__name__}")
    return [value]


def compare_export(
    model: "ModelProto", program: Program, inputs: Sequence[Array], wanted: Sequence[Array], tolerance: float
) -> FrameworkComparison:
    """Runs the exported model in onnxruntime and as instructions on `inputs`, which are in the order of the model.

    `wanted` are the outputs of the framework. `tolerance` is that of `Program.validate`. Raises `UserError` if the
    numbers of inputs or outputs are not those of the model.
    """
    require_own_packages("validator")
    from validator.judge.comparison import compare_tensor as judge
    from validator.judge.comparison import tally_errors
    from validator.model.ort_session import create_session

    weights = {tensor.name for tensor in model.graph.initializer}
    feeds = _named("inputs", [v.name for v in model.graph.input if v.name not in weights], inputs)
    eager = _named("outputs", [o.name for o in model.graph.output], wanted)
    golden = create_session(model.SerializeToString(), Path(model.graph.name or "the exported model"))
    exported = dict(zip(eager, golden.run(list(eager), feeds), strict=True))
    chip = InferenceSession(program)  # it may have other names: someone else exported the model
    taken = _named("inputs", [arg.name for arg in chip.get_inputs()], inputs)
    computed = _named("outputs", list(eager), chip.run(None, taken))

    def judged(got: Mapping[str, Array], want: Mapping[str, Array]) -> "tuple[TensorComparison, ...]":
        return tuple(
            judge(name, tally_errors(np.asarray(got[name]), np.asarray(want[name])), tolerance) for name in eager
        )

    return FrameworkComparison(judged(exported, eager), judged(computed, exported))


def _named(what: str, names: Sequence[str], arrays: Sequence[Array]) -> dict[str, Array]:
    if len(names) != len(arrays):
        raise UserError(f"the model has {len(names)} {what} ({', '.join(names)}), not {len(arrays)}")
    return dict(zip(names, arrays, strict=True))
