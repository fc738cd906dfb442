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
from raptor.tools.prune.choose_tiles import (
    Bools,
    Doubles,
    LayerSums,
    LayerTiles,
    PruningCurve,
    choose_counts,
    cut_tiles,
    keep_others,
    order_tiles,
    refit,
)
from raptor.tools.prune.held_out import HeldOutSamples, split_samples
from raptor.tools.prune.layer_inputs import PrunedLayer, find_layers
from raptor.tools.quantise.calibration_data import Sample, read_sampled_inputs, read_samples
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.quantise.prepare_model import prepare_floats
from raptor.tools.train.train_data import refuse_test_samples
from validator.accuracy.labelled_data import LabelledData, digest_each

_OPSET = 13
_POINTS = 12
"""Most numbers of tiles of a layer for which outputs are measured; between them, errors are interpolated."""
Refine = Callable[[ModelProto, ModelProto, Mapping[str, Bools], Sequence[Sample]], ModelProto]
"""(model, pruned model, which weights stay, by initializer, samples) -> a model with the same zeros, trained."""


@dataclass(frozen=True, slots=True)
class LayerPruning:
    """Tiles of a layer that are all zeros, of all its tiles, and its crossbars.

    `error`: root mean square of what its outputs lost by pruning, relative to theirs; None without samples.
    """

    node: str
    zero_tiles: int
    tiles: int
    crossbars: int
    crossbars_before: int
    error: float | None


@dataclass(frozen=True, slots=True, eq=False)
class PrunedModel:
    """A pruned model. `before`: the model before pruning. `masks`: which weights stay, keyed by initializer.

    `error`: root mean square error of the outputs, relative to how much they vary, for the `held_out` samples to which
    nothing is fitted; None without samples.
    """

    model: ModelProto
    before: ModelProto
    masks: Mapping[str, Bools]
    layers: tuple[LayerPruning, ...]
    held_out: int
    error: float | None

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
    *,
    products: float = 1.0,
    refine: Refine | None = None,
    test: Path | None = None,
) -> PrunedModel:
    """Prunes `share` of the crossbars of a float model, without labels.

    `tile`: outputs of a matrix. `mapping`: with `rows`, layers with several output pixels are pruned in all kernel
    positions at once, because their matrices hold several. `data`: samples by which the weights that stay make up for
    the others; one in five is held out, and decides how much of each layer goes. None prunes the smallest weights and
    changes no other. `products`: weight of a saved product beside a saved crossbar. `refine`: trains what is left; it
    gets no sample that is held out. `test`: labelled samples that `data` must not have. Raises `UserError` for a model
    without layers to prune, for samples that do not fit, and for samples of the test.
    """
    with tempfile.TemporaryDirectory(prefix="raptor-") as scratch:
        prepared = prepare_floats(source, ModelInputs(), _OPSET, Path(scratch))
    proto = shape_inference.infer_shapes(prepared.proto)
    layers = list(find_layers(proto))
    if not layers:
        raise UserError(f"{prepared.name}: no layer to prune: no Conv without groups, Gemm or MatMul with own weights")
    tiles = [_cut(layer, target, tile, whole=mapping == "rows" and layer.pixels > 1) for layer in layers]
    fitted, others = split_samples([] if data is None else _read_untested(proto, data, samples, test))
    held_out = HeldOutSamples.make(proto, others) if others else None
    sums = list(_sum_up(proto, proto, layers, fitted)) if fitted else [None] * len(layers)
    curves = [_find_curve(proto, *each, held_out) for each in zip(layers, tiles, sums, strict=True)]
    counts = choose_counts([*zip(tiles, curves, strict=True)], share, products)
    kept = [
        keep_others(_flat(layer.weights).shape, cut, curve.steps[:count])
        for layer, cut, curve, count in zip(layers, tiles, curves, counts, strict=True)
    ]
    pruned, errors = _prune_layers(proto, layers, tiles, kept, fitted)
    masks = {
        layer.node.input[1]: layer.to_initializer(mask.reshape(layer.weights.shape).astype(float)) > 0
        for layer, mask in zip(layers, kept, strict=True)
    }
    if refine is not None:
        pruned = refine(proto, pruned, masks, fitted)
    told = (_describe(layers[n], tiles[n], kept[n], errors[n]) for n in range(len(layers)))
    error = None if held_out is None else float(np.sqrt(held_out.find_error(pruned)))
    return PrunedModel(pruned, proto, masks, tuple(told), len(others), error)


def _read_untested(model: ModelProto, data: Path, most: int | None, test: Path | None) -> list[Sample]:
    inputs = read_sampled_inputs(model)
    found = read_samples(data, inputs, most)
    if test is not None:
        given = LabelledData({i.name: np.stack([sample[i.name] for sample in found]) for i in inputs}, None)
        refuse_test_samples(data, digest_each(given), test, inputs)
    return found


def _find_curve(
    model: ModelProto, layer: PrunedLayer, tiles: LayerTiles, sums: LayerSums | None, held_out: HeldOutSamples | None
) -> PruningCurve:
    """Returns the order of the tiles of a layer, and the error of the outputs of the model when they are gone."""
    weights = _flat(layer.weights)
    order = list(order_tiles(weights, tiles, sums))
    steps = tuple((block, k) for _, block, k in order)
    if sums is None or held_out is None or not steps:
        return PruningCurve(steps, np.array([error for error, *_ in order]))
    points = np.unique(np.linspace(1, len(steps), min(_POINTS, len(steps))).round().astype(np.int64))
    found = [0.0]
    for point in points.tolist():
        changed, bias = weights.copy(), None if layer.bias is None else layer.bias.copy()
        refit(changed, bias, keep_others(weights.shape, tiles, steps[:point]), tiles, sums)
        tried = ModelProto()
        tried.CopyFrom(model)
        _write_layer(tried, layer, changed, bias)
        found.append(held_out.find_error(tried))
    places = np.arange(1, len(steps) + 1)
    return PruningCurve(steps, np.maximum.accumulate(np.interp(places, [0, *points], found)))


def _prune_layers(
    model: ModelProto,
    layers: Sequence[PrunedLayer],
    tiles: Sequence[LayerTiles],
    kept: Sequence[Bools],
    samples: Sequence[Sample],
) -> tuple[ModelProto, list[float | None]]:
    """Returns the pruned model, whose layers are fitted one after the other, and the error of each layer."""
    errors: list[float | None] = []
    pruned = ModelProto()
    pruned.CopyFrom(model)
    for layer, cut, mask in zip(layers, tiles, kept, strict=True):
        weights, bias = _flat(layer.weights).copy(), None if layer.bias is None else layer.bias.copy()
        error = None
        if samples:
            (found,) = _sum_up(model, pruned, [layer], samples)
            refit(weights, bias, mask, cut, found)
            error = _find_error(weights, bias, found)
        weights[~mask] = 0
        errors.append(error)
        _write_layer(pruned, layer, weights, bias)
    return pruned, errors


def _write_layer(model: ModelProto, layer: PrunedLayer, weights: Doubles, bias: Doubles | None) -> None:
    _replace(model, layer.node.input[1], layer.to_initializer(weights.reshape(layer.weights.shape)))
    if bias is not None:
        _replace(model, layer.node.input[2], bias.astype(np.float32))


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
