"""PyTorch: a module becomes a program through `torch.onnx.export`. RAPTOR does not install PyTorch.

import raptor

program = raptor.torch.compile(module, (image,), xbar=128, cores=200)
print(raptor.torch.compare(module, (image,), program))
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import numpy as np

from raptor import api
from raptor.api import Program
from raptor.common.errors import UserError
from raptor.common.optional_packages import require_packages
from raptor.common.options import arguments
from raptor.integrations.framework_export import (
    Array,
    FrameworkComparison,
    flatten_arrays,
    wrap_export_errors,
)
from raptor.integrations.framework_export import compare_export as compare_exported
from raptor.options import CompileKeywords

if TYPE_CHECKING:
    from onnx import ModelProto

PACKAGES = ("torch", "onnxscript")
"""Packages that an export needs, which RAPTOR does not install."""


def compile(module: Any, example_inputs: Any, **options: Unpack[CompileKeywords]) -> Program:
    """Exports a module to ONNX, and compiles it.

    `example_inputs`: a tensor, or a tuple of the arguments of `forward`; their shapes become those of the program.
    `options`: those of `raptor.compile`. The module is exported in evaluation mode, which is reset afterwards.

    Raises `UserError` if PyTorch or onnxscript are missing or the module cannot be exported, and the errors of
    `raptor.compile`.
    """
    return api.compile(export(module, example_inputs), **options)


def export(module: Any, example_inputs: Any) -> "ModelProto":
    """Exports a module by `torch.onnx.export(dynamo=True)`. Returns the ONNX model, with weights; see `compile`."""
    with require_packages("raptor.torch", *PACKAGES):
        torch: Any = import_module("torch")
    if not isinstance(module, torch.nn.Module):
        raise arguments.argument_error("module", module, "a torch.nn.Module")
    flatten_arrays("example_inputs", example_inputs)
    with evaluation_mode(module), wrap_export_errors("torch.onnx.export", *PACKAGES):
        exported = torch.onnx.export(module, _tuple(example_inputs), dynamo=True, external_data=False, verbose=False)
        _refuse_mutations(exported.exported_program.graph_signature)
        return exported.model_proto


def _refuse_mutations(signature: Any) -> None:
    """Raises `UserError` if the module writes to its inputs or buffers: ONNX has only results."""
    changed = [*signature.user_inputs_to_mutate.values(), *signature.buffers_to_mutate.values()]
    if changed:
        raise UserError(
            f"the module changes {', '.join(changed)} in place, which a program cannot do; return it instead"
        )


def compare(
    module: Any,
    example_inputs: Any,
    program: Program | None = None,
    *,
    tolerance: float = 1e-4,
    **options: Unpack[CompileKeywords],
) -> FrameworkComparison:
    """Compares the exported model (in onnxruntime) with the module, and the compiled program with the exported model.

    So an error is either the exporter's or RAPTOR's. Without `program`, the module is compiled with `options`.
    Raises the errors of `compile`, and `UserError` if the inputs do not fit.
    """
    tolerance = arguments.parse_finite("tolerance", tolerance, 0)
    model = export(module, example_inputs)
    program = program or api.compile(model, **options)
    inputs = [_array(tensor) for tensor in flatten_arrays("example_inputs", example_inputs)]
    with evaluation_mode(module), import_module("torch").no_grad():
        wanted = [_array(tensor) for tensor in flatten_arrays("the module's result", module(*_tuple(example_inputs)))]
    return compare_exported(model, program, inputs, wanted, tolerance)


@contextmanager
def evaluation_mode(module: Any) -> Generator[None]:
    """Sets a module to evaluation mode in the block: dropout and batch normalisation differ in training mode."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def harden(
    module: Any,
    cells: str | Path,
    *,
    noise: float | Literal["device"] = "device",
    weights: int = 8,
    clip: float | None = 2.5,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
) -> Any:
    """Puts errors of cells on the weights of a module's layers, for a training loop of the user. Returns the module.

    In training mode, each forward pass of a Conv1d, Conv2d, Conv3d or Linear layer has weights with errors drawn anew,
    and clips the weights themselves to `clip` standard deviations. In evaluation mode, and so in `export`, the weights
    are as they are. Depthwise layers have no errors, as vector units compute them. `cells`: device file or preset, with
    the `settings` of `raptor accuracy --with`. `noise`: `device`, or a standard deviation as a share of the largest
    weight of each channel. `weights`: bits of a weight. PyTorch can remove parametrizations again.

    Raises `UserError` without PyTorch, for invalid arguments, and for a module without such layers.
    """
    with require_packages("raptor.torch.harden", "'raptor-crossbar[train]'"):
        torch: Any = import_module("torch")
    if not isinstance(module, torch.nn.Module):
        raise arguments.argument_error("module", module, "a torch.nn.Module")
    from raptor.tools.harden.harden_model import parse_weight_bits, read_device
    from raptor.tools.train.weight_noise import CodeNoise, WeightNoise
    from validator.crossbar.weight_errors import tabulate_code_errors

    bits, (setup, _) = parse_weight_bits(weights), read_device(cells, settings)
    if noise == "device":
        errors = CodeNoise.from_errors(tabulate_code_errors(bits, setup))
    else:
        errors = CodeNoise.uniform(bits, arguments.parse_finite("noise", noise, 0))
    most = None if clip is None else arguments.parse_finite("clip", clip, 0)
    nn, parametrize = torch.nn, import_module("torch.nn.utils.parametrize")
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    layers = {n: m for n, m in module.named_modules() if isinstance(m, kinds) and not _is_depthwise(m)}
    if not layers:
        raise UserError("the module has no Conv1d, Conv2d, Conv3d or Linear layer that crossbars compute")
    changed = [name for name, layer in layers.items() if parametrize.is_parametrized(layer, "weight")]
    if changed:
        raise UserError(f"module: layer {changed[0]!r}: its weight has a parametrization already; harden a module once")
    generator = torch.Generator().manual_seed(arguments.parse_integer("seed", seed, 0))
    for layer in layers.values():
        added = WeightNoise(errors, axis=0, clip=most, quantised=False, generator=generator)
        added.train(layer.training)
        # PyTorch evaluates a parametrization when it is registered, and a draw would change the seed's sequence.
        parametrize.register_parametrization(layer, "weight", added, unsafe=True)
    return module


def _is_depthwise(layer: Any) -> bool:
    return getattr(layer, "groups", 1) > 1 and layer.weight.shape[1] == 1


def _tuple(example_inputs: object) -> tuple[Any, ...]:
    if isinstance(example_inputs, list | tuple):
        return tuple(cast(Sequence[Any], example_inputs))
    return (example_inputs,)


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())
