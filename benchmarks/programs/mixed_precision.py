"""Measure the savings of mixed precision, compared with a published search: `make bench-mixed`.

The search of cim-aq (arXiv 2601.21737) publishes bits of weights and inputs for each layer of VGG-16, and what they
save by its own table of latencies: one engine, layer after layer, in which each write and each product of a tile takes
its turn. Here the same policy runs as a program on a chip that holds all weights, in the simulator. ONNX has 4 and 8
bits, so widths between are rounded up.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

import models
import raptor
from raptor.options import ModelInputs
from raptor.tools.quantise import Policy
from raptor.tools.quantise.mixed_precision import find_weighted_layers
from raptor.tools.quantise.options import QuantisationChoice
from raptor.tools.quantise.static_quantisation import CalibratedModel, CalibrationRequest, calibrate_model

CELL_BITS, SIDE, WRITE_US, PRODUCT_US = 4, 256, 56.0, 1.4
"""The engine of the publication: crossbars of 256 x 256 cells of 4 bits; time of a write, and of a product per bit."""
PUBLISHED: Mapping[str, tuple[Sequence[int], Sequence[int]]] = {
    "vgg16": ((8, *(4,) * 12, 8, 4, 8), (8, 7, 6, 3, 5, 4, 4, 6, 4, 2, 6, 3, 7, 8, 7, 8)),
}
"""Published bits of weights and of inputs by layer, for a loss of at most 5 points of accuracy before retraining."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer as a product: rows and columns of its matrix, and vectors that it multiplies."""

    rows: int
    cols: int
    vectors: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="pixels of a side of the image")
    parser.add_argument("--width", type=float, default=1.0, help="share of the channels")
    parser.add_argument("--cores", type=int, default=144, help="cores of the chip")
    args = parser.parse_args()
    chip = {"xbar": SIDE, "cell_bits": CELL_BITS, "cores": args.cores}
    table = Table(box=None, title="Latency and energy with 8 bits everywhere, over those of a policy")
    for name in ("model", "policy", "table of the publication", "latency", "energy"):
        table.add_column(name, justify="left" if name in ("model", "policy") else "right")
    for name, (weights, inputs) in PUBLISHED.items():
        model = models.build(name, image_size=args.size, width=args.width)
        choice = QuantisationChoice(per_channel=True)
        source = calibrate_model(model, choice, CalibrationRequest(None, 0, 1, ModelInputs()), any_bits=True)
        for row in format_rows(name, source, list(list_layers(model)), weights, inputs, chip):
            table.add_row(*row)
            print(*row, flush=True)
    Console().print(table)


def format_rows(
    name: str,
    source: CalibratedModel,
    layers: Sequence[LayerShape],
    weights: Sequence[int],
    inputs: Sequence[int],
    chip: Mapping[str, Any],
) -> Iterator[tuple[str, ...]]:
    names = [*find_weighted_layers(source.base)]
    eights = [8] * len(names)
    base = simulate_policy(source, Policy(), chip)
    cases = {"as published": (weights, inputs), "weights alone": (weights, eights), "inputs alone": (eights, inputs)}
    for case, (w, a) in cases.items():
        found = simulate_policy(source, make_policy(names, w, a), chip)
        table = published_latency_us(layers, eights, eights) / published_latency_us(layers, w, a)
        yield name, case, f"{table:.3f}", *(f"{b / f:.3f}" for b, f in zip(base, found, strict=True))


def make_policy(names: Sequence[str], weights: Sequence[int], inputs: Sequence[int]) -> Policy:
    """Returns a policy with the published bits, rounded up to the 4 or 8 bits of ONNX."""
    return Policy(
        weights={n: 4 for n, bits in zip(names, weights, strict=True) if bits <= 4},
        inputs={n: 4 for n, bits in zip(names, inputs, strict=True) if bits <= 4},
    )


def simulate_policy(source: CalibratedModel, bits: Policy, chip: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the latency and the energy of a program."""
    found = raptor.compile(source.quantise(bits), **chip).simulate()
    assert found.latency_ns is not None
    assert found.energy_pj is not None
    return found.latency_ns, found.energy_pj


def published_latency_us(layers: Sequence[LayerShape], weights: Sequence[int], inputs: Sequence[int]) -> float:
    """Returns the latency in us by the model of the publication, with a weight as the difference of two columns."""
    total = 0.0
    for layer, w, a in zip(layers, weights, inputs, strict=True):
        tiles = ceil(2 * layer.cols * ceil(w / CELL_BITS) / SIDE) * ceil(layer.rows / SIDE)
        total += tiles * (WRITE_US + layer.vectors * a * PRODUCT_US)
    return total


def list_layers(model: onnx.ModelProto) -> Iterator[LayerShape]:
    """Yields the layers of a model with convolutions and dense layers, in their order."""
    found = onnx.shape_inference.infer_shapes(model).graph
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*found.value_info, *found.output)}
    constants = {t.name: t.dims for t in found.initializer}
    for node in found.node:
        if node.op_type == "Conv":
            out, inner, *kernel = constants[node.input[1]]
            height, width = sizes[node.output[0]][2:]
            yield LayerShape(inner * kernel[0] * kernel[1], out, height * width)
        elif node.op_type == "Gemm":
            out, inner = constants[node.input[1]]
            yield LayerShape(inner, out, 1)


if __name__ == "__main__":
    main()
