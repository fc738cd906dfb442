"""Canonicalisation of ONNX by onnxruntime's BASIC optimiser, because ONNX can express one computation in many ways.

The optimiser folds constants, shapes and batch normalisation, and removes nodes without effect in inference. It keeps
to standard operators and preserves the names of the tensors that remain. Of the other tools tried (onnxscript,
onnx-ir's passes, onnxsim, onnxoptimizer) none did all of that.
"""

import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from onnx import ModelProto, NodeProto

from raptor.common.errors import InternalError, UserError
from raptor.frontend.canonical.drop_empty_tensors import drop_empty_tensors
from raptor.frontend.canonical.fold_constants import can_fold, fold_constants, lacks_kernel, write_external_data
from raptor.frontend.canonical.time_first_rnn import make_time_first
from raptor.frontend.control_flow.inline_subgraphs import rename_reads
from raptor.frontend.proto.model_checks import check_sizes, extract_fault, extract_runtime_fault, raise_if_unsupported
from raptor.frontend.proto.onnx_wrappers import (
    InvalidTypes,
    infer_shapes,
    read_without_weights,
    run_on_ones,
    run_optimiser,
    set_external_data,
)
from raptor.frontend.proto.opset_conversion import OLDEST_OPSET, opset_version
from raptor.frontend.proto.read_model import INLINE_BYTES, ORIGINAL_LOCATION, SourceModel, find_reads
from raptor.frontend.registry import is_supported_op

DISABLED_FUSIONS = ("MatMulAddFusion", "GemmSumFusion")
"""Fusions turned off, so that product and sum keep the user's names."""
DISABLED_QDQ_REWRITES = (
    "WeightBiasQuantization",
    "QDQPropagationTransformer",
    "DoubleQDQPairsRemover",
    "EnsureUniqueDQForNodeUnit",
    "ReluQuantRewrite",
    "ClipQuantRewrite",
)
"""Rewrites of quantised models turned off: rounding stays where the model has it, under the model's names."""
MERGING_OF_EQUAL_NODES = "CommonSubexpressionElimination"
CONVERTED_LOCATION = "converted"
"""External data location that stands for the in-memory data of converted weights."""
INLINED_PREFIX = "_inlfunc_"
"""Prefix of onnxruntime's names for tensors of inlined functions."""
GENERATED_PREFIX = "_new_shape"
"""Prefix of onnxruntime's names for shape constants of fused reshapes."""

_FOLDINGS = 16
"""Maximum number of constant folding rounds; each can make shapes known that more folding depends on."""


@contextmanager
def canonicalise(source: SourceModel, *, keep_equal: bool = False) -> Generator[tuple[ModelProto, Path]]:
    """Yields the canonical model with all shapes inferred, and a folder with its larger weights, deleted on exit.

    `keep_equal`: nodes that compute the same value are not merged.
    Replaces `source.proto` by one without weights, so that a model of 500 MB is not in memory five times.
    """
    with tempfile.TemporaryDirectory(prefix="raptor-") as name:
        folder = Path(name)
        _make_loadable(source.proto)
        source.proto, converted = _move_weights(source.proto)
        check_sizes(_inferred(source))
        (folder / "original.onnx").write_bytes(source.proto.SerializeToString())
        disabled = (*DISABLED_FUSIONS, *DISABLED_QDQ_REWRITES, *([MERGING_OF_EQUAL_NODES] if keep_equal else ()))
        _optimise(source, folder, {ORIGINAL_LOCATION: source.onnx_bytes, CONVERTED_LOCATION: converted}, disabled)
        del converted
        canonical = infer_shapes(read_without_weights(folder / "canonical.onnx"))
        drop_empty_tensors(canonical)
        yield canonical, folder


@contextmanager
def blame_model_on_error(folder: Path) -> Generator[None]:
    """Turns an `InternalError` into a `UserError` if onnxruntime cannot run the canonical model either.

    Incompatible shapes (a Conv of 4 channels on an image of 5) show only there.
    """
    try:
        yield
    except InternalError:
        try:
            run_on_ones(folder / "canonical.onnx")
        except Exception as error:  # as in `_optimise`
            raise UserError(f"onnxruntime cannot run the model: {extract_runtime_fault(error, folder)}") from None
        raise


def _inferred(source: SourceModel) -> ModelProto:
    try:
        return infer_shapes(source.proto)
    except (InvalidTypes, ValueError) as error:
        raise_if_unsupported(source.proto, source.reasons)
        raise UserError(f"not a valid ONNX model: {extract_fault(error)}") from None


def _make_loadable(proto: ModelProto) -> None:
    """Changes the model, in place, into one that onnxruntime optimises and reads back."""
    # Up to IR 3 weights are inputs as well; the optimiser then writes models that do not reload.
    weights = {t.name for t in proto.graph.initializer}
    inputs = [v for v in proto.graph.input if v.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.ir_version = min(max(proto.ir_version, 8), 10)
    make_time_first(proto)
    _drop_unused(proto)


def _drop_unused(proto: ModelProto) -> None:
    """Removes nodes that no output depends on; onnxruntime takes minutes to remove ten thousand of them.

    Unsupported nodes stay, so that errors can name them.
    """
    needed = {value.name for value in proto.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output) or not is_supported_op(node.domain, node.op_type):
            kept.append(node)
            needed.update(find_reads(node))
    if len(kept) < len(proto.graph.node):
        del proto.graph.node[:]
        proto.graph.node.extend(reversed(kept))


def _move_weights(proto: ModelProto) -> tuple[ModelProto, bytearray]:
    converted = bytearray()
    for tensor in proto.graph.initializer:
        data = tensor.raw_data
        if len(data) >= INLINE_BYTES:
            set_external_data(tensor, CONVERTED_LOCATION, len(converted), len(data))
            converted += data
    # A copy, because protobuf gives memory back only with the whole message.
    return ModelProto.FromString(proto.SerializeToString()), converted


def _optimise(
    source: SourceModel, folder: Path, in_memory: Mapping[str, bytes | bytearray], disabled: Sequence[str]
) -> None:
    original, shaped, target = (folder / f"{name}.onnx" for name in ("original", "shaped", "canonical"))
    run = partial(run_optimiser, inline_bytes=INLINE_BYTES, disabled=disabled)
    try:
        # The weights go to a file, from which they are imported one by one.
        run(original, target, weights="weights.bin", in_memory=in_memory)
        again = folder / "again.onnx"
        for number, changed in enumerate(_changes(target, folder)):
            _rename_generated(changed)
            shaped.write_bytes(changed.SerializeToString())
            run(shaped, again, weights=f"again_{number}.bin")
            again.replace(target)
    except Exception as error:  # onnxruntime raises a dozen types that have only Exception in common
        if "bad_alloc" in str(error) or "bad allocation" in str(error):
            raise MemoryError from None
        raise_if_unsupported(source.proto, source.reasons)
        if lacks_kernel(error) and opset_version(source.proto) >= OLDEST_OPSET:
            inferred = infer_shapes(source.proto)
            write_external_data(inferred, folder, in_memory)
            fold_constants(inferred, folder)
            target.write_bytes(inferred.SerializeToString())
            return
        raise UserError(f"onnxruntime refuses the model: {extract_runtime_fault(error, folder)}") from None


def _changes(path: Path, folder: Path) -> Iterator[ModelProto]:
    """Yields the model in a file, changed, as long as another optimiser run helps; the caller replaces the file."""
    if _has_inlined_functions(path) or _has_shapes(path):
        # onnxruntime expands functions into operators (GroupNormalization) only after it has optimised the rest.
        # It does not infer all shapes (MeanVarianceNormalization), but uses given ones; then it also folds the nodes
        # that depend on them.
        inferred = infer_shapes(read_without_weights(path))
        fold_constants(inferred, folder)
        yield inferred
    for _ in range(_FOLDINGS):
        found = read_without_weights(path)
        if not can_fold(found.graph):
            return
        found = infer_shapes(found)
        if not fold_constants(found, folder):
            return
        yield found


def _rename_generated(proto: ModelProto) -> None:
    """Renames constants that onnxruntime generated, in place: its next run would generate the same names again."""
    generated = {t.name for t in proto.graph.initializer if t.name.startswith(GENERATED_PREFIX)}
    names = {name: f"again.{name}" for name in generated - {v.name for v in proto.graph.output}}
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in proto.graph.node:
        rename_reads(node, names)


def _has_inlined_functions(path: Path) -> bool:
    nodes = read_without_weights(path).graph.node
    return any(o.startswith(INLINED_PREFIX) for n in nodes for o in n.output)


def _has_shapes(path: Path) -> bool:
    return any(n.op_type in ("Shape", "Size") for n in read_without_weights(path).graph.node)
