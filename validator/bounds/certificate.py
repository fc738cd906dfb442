"""Checks a certificate: a lower bound on the interval of every mapping of a model, in exact arithmetic, with no solver.

`validator.bounds.model_work` says which work counts and in which forms. The bound is that of a linear program by weak
duality. The certificate has its prices: v for the time of a crossbar, by that of a core, and for each layer
0 <= alpha <= v for its crossbars and four prices of what it must cover. Every interval t, with sums over all layers,
satisfies

    t * (cores * (1 + v * crossbars of a core) - sum of (v - alpha) * crossbars of the layer's weights)
        >= sum of layer values + vector work + transfers

if no product covers more than it costs: time + additions + alpha * crossbars * time >= prices * covered. A crossbar
holds its weights for all of t, and is busy for the time of its products.
"""

import json
from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from validator.bounds.chip_times import CertificateRefused, ChipTimes
from validator.bounds.model_work import ModelWork
from validator.bounds.product_layer import ChannelRange, ProductLayer, cover_axis

VERSION = 1
MODEL_LIMIT_BYTES, JSON_LIMIT_BYTES, TEXT_LIMIT = 2**31, 2**25, 200
"""Largest sizes of an ONNX file and of a JSON file, and most characters of a fraction."""
INT64_LIMIT = 2**62


class UnreadableFile(Exception):  # noqa: N818 (what happened, as its reader sees it)
    """A file cannot be read."""


def _read_file(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(limit_bytes + 1)
    except OSError as e:
        raise UnreadableFile(f"{path}: {e.strerror}") from e
    if len(content) > limit_bytes:
        raise UnreadableFile(f"{path}: larger than {limit_bytes:,} bytes")
    return content


def _parse_decimal(text: str) -> Fraction:
    _, _, exponent = text.lower().partition("e")
    if len(text) > TEXT_LIMIT or abs(int(exponent or "0")) > TEXT_LIMIT:
        raise ValueError(f"{text[:40]} has too many digits")
    return Fraction(text)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, with decimal numbers as exact fractions. Raises `UnreadableFile`."""
    try:
        found: Any = json.loads(_read_file(path, JSON_LIMIT_BYTES), parse_float=_parse_decimal)
    except (ValueError, RecursionError, ZeroDivisionError) as e:
        raise UnreadableFile(f"{path}: not JSON: {str(e)[:200]}") from e
    if not isinstance(found, dict):
        raise UnreadableFile(f"{path}: not a JSON object")
    return cast("dict[str, Any]", found)


def read_model(path: Path) -> onnx.ModelProto:
    """Reads an ONNX file; constants in files beside it are not read. Raises `UnreadableFile`."""
    try:
        return onnx.ModelProto.FromString(_read_file(path, MODEL_LIMIT_BYTES))
    except DecodeError as e:
        raise UnreadableFile(f"{path}: not an ONNX model") from e


def verify(model: onnx.ModelProto, arch: dict[str, Any], given: dict[str, Any]) -> Fraction:
    """Returns the bound of a certificate in ns, which it proves for a model and an architecture file.

    Raises `CertificateRefused`, also if one of them is not of its form.
    """
    try:
        bits = [given[key] for key in ("weight_bits", "input_bits", "sum_bits")]
        if given["version"] != VERSION or not all(isinstance(n, int) and 1 <= n <= 64 for n in bits):
            raise CertificateRefused(f"not of version {VERSION}, or the widths are no numbers of bits")
        return prove_bound(ModelWork(model, ChipTimes(arch, *bits), given["inputs"]), given)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        onnx.shape_inference.InferenceError,
    ) as e:
        raise CertificateRefused(f"not of its form: {type(e).__name__}: {str(e)[:200]}") from e


def read_number(text: object) -> Fraction:
    """Returns an exact number from its text, such as `3/4`. Raises `CertificateRefused` for anything else."""
    if not isinstance(text, str) or len(text) > TEXT_LIMIT or "e" in text.lower():
        raise CertificateRefused(f"{str(text)[:40]!r} is not a fraction")
    return Fraction(text)


def compute_layer_value(
    layer: ProductLayer, alpha: Fraction, prices: Sequence[Sequence[Sequence[Fraction]]]
) -> Fraction:
    """Returns the least price of a layer, in ns, by the prices of its crossbars and of its demands (by form and range).

    Raises `CertificateRefused` if a price is negative, or a product covers more than it costs.
    """
    found = [] if layer.vector_ns is None else [layer.vector_ns]
    for form, by_range in zip(layer.forms, prices, strict=True):
        total = -layer.add_ns * layer.results
        for part, lam in zip(form, by_range, strict=True):
            if len(lam) != 4 or min(lam) < 0:
                raise CertificateRefused(f"{layer.nodes[0]}: not four prices of at least 0")
            _check_products(layer, part, alpha, lam)
            total += part.number * sum(price * amount for price, amount in zip(lam, layer.demand(part), strict=True))
        found.append(total)
    return max(Fraction(0), min(found))


def _check_products(layer: ProductLayer, part: ChannelRange, alpha: Fraction, prices: Sequence[Fraction]) -> None:
    """Checks all products, in integers. The cost of a product is linear in its output channels between two extremes."""
    chip = layer.chip
    wide_ns = chip.crossbar_ns + alpha * (chip.base_ns + chip.crossbar_ns)
    costs = (chip.base_ns, wide_ns, layer.add_ns, *prices)
    scale = lcm(*(cost.denominator for cost in costs))
    start, wide, add, *price = (int(cost * scale) for cost in costs)
    outputs, most = chip.outputs, chip.outputs * chip.xbars
    for block in layer.blocks(part):
        lines, pixels = cover_axis(layer.y, block.lines), cover_axis(layer.x, block.pixels)
        results = len(lines.pairs) * len(pixels.pairs)
        worth = max(price) * block.inputs * 4 * lines.pairs[-1] * pixels.pairs[-1]
        largest = max(worth, start + wide * chip.xbars + add * results) * (block.outputs * results + most) * outputs
        kind = np.int64 if largest < INT64_LIMIT else object
        fy, fx = np.array(lines.pairs, kind)[:, None], np.array(pixels.pairs, kind)[None, :]
        o = np.arange(1, len(lines.pairs) + 1, dtype=kind)[:, None] * np.arange(1, len(pixels.pairs) + 1, dtype=kind)
        a, b, c, d = price
        covered = block.inputs * (a * lines.ins * pixels.ins + b * lines.ins * fx + c * fy * pixels.ins + d * fy * fx)
        narrow = np.minimum(block.outputs * o, outputs)  # results of a product with one crossbar
        full = np.minimum(block.outputs * o, most)
        if (((start + wide) * o + add * o * narrow) < narrow * covered).any() or (
            (start * outputs + wide * np.maximum(full, outputs)) * o + add * outputs * o * full
            < outputs * full * covered
        ).any():
            raise CertificateRefused(f"{layer.nodes[0]}: a product covers more than it costs")


def _read_prices(given: Any) -> list[list[list[Fraction]]]:
    return [[[read_number(price) for price in prices] for prices in form] for form in given]


def prove_bound(model: ModelWork, given: dict[str, Any]) -> Fraction:
    """Returns the bound that a certificate proves for a model, in ns.

    Raises `CertificateRefused` if it does not belong to the model and the chip, or if it claims more than it proves.
    """
    chip, v, total = model.chip, read_number(given["v"]), model.transfer_ns + sum(model.vector_ns.values())
    if given["cores"] != chip.cores or v < 0:
        raise CertificateRefused("the number of cores or the price of crossbars")
    if [claim["nodes"] for claim in given["layers"]] != [layer.nodes for layer in model.layers]:
        raise CertificateRefused("the layers are not those of the model")
    if {name: read_number(ns) for name, ns in given["vector_ns"].items()} != model.vector_ns:
        raise CertificateRefused("the vector work is not that of the model")
    below = chip.cores * (1 + v * chip.xbars)
    for layer, claim in zip(model.layers, given["layers"], strict=True):
        alpha = read_number(claim["alpha"])
        if not 0 <= alpha <= v or claim["held_xbars"] != layer.held_xbars:
            raise CertificateRefused(f"{layer.nodes[0]}: price or number of crossbars")
        value = compute_layer_value(layer, alpha, _read_prices(claim["prices"]))
        if read_number(claim["value_ns"]) != value:
            raise CertificateRefused(f"{layer.nodes[0]}: value {claim['value_ns']}, but it is {value}")
        total += len(layer.nodes) * value
        below -= (v - alpha) * len(layer.nodes) * layer.held_xbars
    if below <= 0:
        raise CertificateRefused("the weights do not fit the chip, so no mapping is of these forms")
    bound = max(total / below, model.port_ns)
    if read_number(given["port_ns"]) != model.port_ns or read_number(given["bound_ns"]) > bound:
        raise CertificateRefused(
            f"it claims {float(read_number(given['bound_ns'])):.3f} ns, and proves {float(bound):.3f}"
        )
    return bound
