"""Prunes a float model to the crossbars of a chip: whole tiles of weights become 0, the others make up for them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto, numpy_helper, shape_inference

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.options import ModelInputs
from raptor.target.arch import Target
from raptor.tools.prune.choose_tiles import Bools, Doubles, LayerSums, LayerTiles, choose_tiles, cut_tiles, refit
from raptor.tools.prune.layer_inputs import PrunedLayer, find_layers
from raptor.tools.quantise.calibration_data import Sample, read_sampled_inputs, read_samples
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.quantise.prepare_model import prepare_floats

_OPSET = 13
Refine = Callable[[ModelProto, Mapping[str, Bools]], ModelProto]
"""(pruned model, which weights stay, by initializer) -> a model with the same zeros, such as a trained one."""


@dataclass(frozen=True, slots=True)
class LayerPruning:
    """Tiles of a layer that are all zeros, of all its tiles, and its crossbars.

    `error`: root mean square of what its outputs lost, relative to theirs; None without samples.
    """

    node: str
    zero_tiles: int
    tiles: int
    crossbars: int
    crossbars_before: int
    error: float | None


@dataclass(frozen=True, slots=True, eq=False)
class PrunedModel:
    """A pruned model. `before`: the model without zeros. `masks`: which weights stay, keyed by initializer."""

    model: ModelProto
    before: ModelProto
    masks: Mapping[str, Bools]
    layers: tuple[LayerPruning, ...]

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the ONNX file. Raises `UserError` if it may not be replaced."""
        file_access.check_file_replaceable("-o", path, force=force)
        file_access.write_atomic("-o", path, self.model.SerializeToString())


def prune_model(
    source: "str | Path | ModelProto",
    target: Target,
    tile: int,
    share: float,
    mapping: Literal["rows", "raptor"],
    data: Path | None = None,
    samples: int | None = None,
    refine: Refine | None = None,
) -> PrunedModel:
    """Prunes `share` of the crossbars of a float model, without training.

    `tile`: outputs of a matrix. `mapping`: with `rows`, layers with several output pixels are pruned in all kernel
    positions at once, because their matrices hold several. `data`: samples by which the weights that stay make up for
    the others; None prunes the smallest weights and changes no other. `refine`: trains what is left. Raises `UserError`
    for a model without layers to prune, and for samples that do not fit.
    """
    with tempfile.TemporaryDirectory(prefix="raptor-") as scratch:
        prepared = prepare_floats(source, ModelInputs(), _OPSET, Path(scratch))
    proto = shape_inference.infer_shapes(prepared.proto)
    layers = list(find_layers(proto))
    if not layers:
        raise UserError(f"{prepared.name}: no layer to prune: no Conv without groups, Gemm or MatMul with own weights")
    tiles = [_cut(layer, target, tile, whole=mapping == "rows" and layer.pixels > 1) for layer in layers]
    given = [] if data is None else read_samples(data, read_sampled_inputs(proto), samples)
    sums = list(_sum_up(proto, proto, layers, given)) if given else [None] * len(layers)
    kept = choose_tiles([(_flat(x.weights), t, s) for x, t, s in zip(layers, tiles, sums, strict=True)], share)
    errors: list[float | None] = [None] * len(layers)
    pruned = ModelProto()
    pruned.CopyFrom(proto)
    for n, layer in enumerate(layers):
        weights, bias = _flat(layer.weights).copy(), None if layer.bias is None else layer.bias.copy()
        if given:
            (found,) = _sum_up(proto, pruned, [layer], given)
            refit(weights, bias, kept[n], tiles[n], found)
            errors[n] = _find_error(weights, bias, found)
        weights[~kept[n]] = 0
        _replace(pruned, layer.node.input[1], layer.to_initializer(weights.reshape(layer.weights.shape)))
        if bias is not None:
            _replace(pruned, layer.node.input[2], bias.astype(np.float32))
    masks = {
        layer.node.input[1]: layer.to_initializer(mask.reshape(layer.weights.shape).astype(float)) > 0
        for layer, mask in zip(layers, kept, strict=True)
    }
    if refine is not None:
        pruned = refine(pruned, masks)
    told = (_describe(layers[n], tiles[n], kept[n], errors[n]) for n in range(len(layers)))
    return PrunedModel(pruned, proto, masks, tuple(told))


def _cut(layer: PrunedLayer, target: Target, tile: int, *, whole: bool) -> LayerTiles:
    tile_size, pixels = (target.xbar_rows, tile), layer.pixels
    return cut_tiles(layer.places, layer.weights.shape[2], tile_size, target.outputs_per_xbar, pixels, whole=whole)


def _flat(weights: Doubles) -> Doubles:
    return weights.reshape(-1, weights.shape[-1])


def _sum_up(
    wanted: ModelProto, found: ModelProto, layers: Sequence[PrunedLayer], samples: Sequence[Sample]
) -> Iterator[LayerSums]:
    """Yields sums over samples: inputs that a layer has in `found`, and the outputs that it has in `wanted`."""
    names = [layer.node.input[0] for layer in layers]
    exact, now = (OrtSession(_with_outputs(model, names)) for model in (wanted, found))
    totals = [_RunningSums.make(*_flat(layer.weights).shape) for layer in layers]
    for sample in samples:
        right = exact.run(sample)
        here = right if found is wanted else now.run(sample)
        for name, layer, total in zip(names, layers, totals, strict=True):
            outputs = layer.make_rows(right[name]) @ _flat(layer.weights)
            total.add(layer.make_rows(here[name]), outputs if layer.bias is None else outputs + layer.bias)
    yield from (total.finish() for total in totals)


@dataclass(slots=True)
class _RunningSums:
    """Sums over samples (`LayerSums`), with the number of output pixels, and sums of outputs and of their squares."""

    gram: Doubles
    cross: Doubles
    outputs: Doubles
    square: float = 0.0
    count: int = 0

    @classmethod
    def make(cls, rows: int, outputs: int) -> "_RunningSums":
        return cls(np.zeros((rows + 1, rows + 1)), np.zeros((rows + 1, outputs)), np.zeros(outputs))

    def add(self, rows: Doubles, outputs: Doubles) -> None:
        rows = np.hstack([rows, np.ones((len(rows), 1))])
        self.gram += rows.T @ rows
        self.cross += rows.T @ outputs
        self.outputs += outputs.sum(axis=0)
        self.square += float((outputs**2).sum())
        self.count += len(rows)

    def finish(self) -> LayerSums:
        around_mean = self.square - float((self.outputs**2).sum()) / self.count
        return LayerSums(self.gram, self.cross, around_mean)


def _find_error(weights: Doubles, bias: Doubles | None, sums: LayerSums) -> float:
    """Returns the root mean square error of the outputs, relative to their deviation from their means."""
    every = np.vstack([weights, np.zeros((1, weights.shape[1])) if bias is None else bias[None]])
    mean_square = (sums.cross[-1] ** 2).sum() / sums.gram[-1, -1]
    lost = (every * (sums.gram @ every)).sum() - 2 * (every * sums.cross).sum() + sums.square + mean_square
    return float(np.sqrt(max(lost, 0) / max(sums.square, 1e-30)))


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {v.name for v in (*model.graph.output, *model.graph.input)}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    return copy


def _replace(model: ModelProto, name: str, values: npt.NDArray[Any]) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def _describe(layer: PrunedLayer, tiles: LayerTiles, kept: Bools, error: float | None) -> LayerPruning:
    zero = [k for k, (low, _) in enumerate(tiles.cols) for rows in tiles.rows if not kept[rows, low].any()]
    gone = sum(tiles.xbars[k] for k in zero)
    return LayerPruning(
        node=layer.node.name,
        zero_tiles=len(zero),
        tiles=len(tiles.rows) * len(tiles.cols),
        crossbars=tiles.all_xbars - gone,
        crossbars_before=tiles.all_xbars,
        error=error,
    )
