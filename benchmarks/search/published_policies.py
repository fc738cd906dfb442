"""The policies of mixed precision that cim-aq publishes (arXiv 2601.21737), and its cost model.

Its engine multiplies one tile of 256x256 cells at a time: each tile is written, then multiplies all vectors, bit after
bit. A weight is the difference of two columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

SIDE, WRITE_US, PRODUCT_US = 256, 56.0, 1.4
"""Rows and columns of a crossbar; time of a write, and of a product per bit of its inputs."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A layer as a product: rows and columns of its matrix, vectors that it multiplies, and matrices of that shape."""

    rows: int
    cols: int
    vectors: int
    matrices: int = 1


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """Bits of weights and inputs, a digit for each layer, in the order in which the network is built.

    `points`: largest loss of accuracy before retraining, in points. `fixed`: what the search had to observe: `inputs`
    and outputs of the network keep 8 bits, `weights` are multiples of a cell, `both`, or `none` of that.
    """

    model: str
    fixed: str
    points: int
    cell_bits: int
    weights: str
    inputs: str

    @property
    def bits(self) -> tuple[Sequence[int], Sequence[int]]:
        return [int(digit) for digit in self.weights], [int(digit) for digit in self.inputs]


POLICIES = (
    PublishedPolicy("vgg16", "both", 5, 4, "8444444444444848", "8763544642637878"),
    PublishedPolicy("resnet18", "both", 1, 4, "888888888848844888888", "855556464345556685788"),
    PublishedPolicy("resnet18", "both", 1, 2, "888686666664666664888", "865565454645653875668"),
    PublishedPolicy("resnet18", "both", 5, 4, "888884844444444444448", "843553344344445474648"),
    PublishedPolicy("resnet18", "both", 5, 2, "844688644668484666488", "854565228654546436548"),
    PublishedPolicy("resnet18", "both", 10, 4, "844444444444444444448", "853246433234463442558"),
    PublishedPolicy("resnet18", "both", 10, 2, "844464668668866888888", "833244234355534646338"),
    PublishedPolicy("resnet18", "inputs", 5, 4, "853743468858766673768", "855254734437687734588"),
    PublishedPolicy("resnet18", "inputs", 5, 2, "853743468858766673768", "855254734437687734588"),
    PublishedPolicy("resnet18", "weights", 5, 4, "888888484484844488444", "555444444545454564456"),
    PublishedPolicy("resnet18", "weights", 5, 2, "864866868668646684686", "645636345455344445357"),
    PublishedPolicy("resnet18", "none", 5, 4, "675766668646644863676", "555568557564446573875"),
    PublishedPolicy("resnet18", "none", 5, 2, "487778677776686767688", "744433444444443553448"),
    PublishedPolicy(
        "vit_b_32",
        "both",
        5,
        4,
        "84844444884444884444484444484444444444444444444444444444444444444444444448",
        "87878778767687677876687778688677857738877578886876878738877758836627754658",
    ),
)


def list_layers(model: str) -> list[LayerShape]:
    """Returns the layers of a network with policies, in their order."""
    return {"vgg16": _list_vgg16, "resnet18": _list_resnet18, "vit_b_32": _list_vit_b_32}[model]()


def _list_vgg16() -> list[LayerShape]:
    found, inputs = list[LayerShape](), 3
    for size, width, count in ((224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)):
        for _ in range(count):
            found.append(LayerShape(9 * inputs, width, size * size))
            inputs = width
    return [*found, LayerShape(49 * inputs, 4096, 1), LayerShape(4096, 4096, 1), LayerShape(4096, 1000, 1)]


def _list_resnet18() -> list[LayerShape]:
    """A projection comes before its block."""
    found, inputs = [LayerShape(3 * 49, 64, 112 * 112)], 64
    for size, width in ((56, 64), (28, 128), (14, 256), (7, 512)):
        vectors = size * size
        found += [LayerShape(inputs, width, vectors)] * (inputs != width)
        found += [LayerShape(9 * inputs, width, vectors), *[LayerShape(9 * width, width, vectors)] * 3]
        inputs = width
    return [*found, LayerShape(inputs, 1000, 1)]


def _list_vit_b_32() -> list[LayerShape]:
    """12 blocks of 12 heads, 50 tokens of 768 channels.

    Queries, keys and values are one layer; keys and values of each head are matrices that are written for the image.
    """
    tokens, width, heads = 50, 768, 12
    block = [
        LayerShape(width, 3 * width, tokens),
        LayerShape(width // heads, tokens, tokens, heads),
        LayerShape(tokens, width // heads, tokens, heads),
        LayerShape(width, width, tokens),
        LayerShape(width, 4 * width, tokens),
        LayerShape(4 * width, width, tokens),
    ]
    return [LayerShape(3 * 32 * 32, width, tokens - 1), *12 * block, LayerShape(width, 1000, 1)]


def published_factor(policy: PublishedPolicy) -> float:
    """Returns the latency with 8 bits everywhere over that of a policy, by the model of the publication."""
    layers = list_layers(policy.model)
    eights = [8] * len(layers)
    base = published_latency_us(layers, eights, eights, policy.cell_bits)
    return base / published_latency_us(layers, *policy.bits, policy.cell_bits)


def published_latency_us(
    layers: Sequence[LayerShape], weights: Sequence[int], inputs: Sequence[int], cell_bits: int
) -> float:
    """Returns the latency in us by the model of the publication."""
    total = 0.0
    for layer, w, a in zip(layers, weights, inputs, strict=True):
        tiles = ceil(2 * layer.cols * ceil(w / cell_bits) / SIDE) * ceil(layer.rows / SIDE)
        total += layer.matrices * tiles * (WRITE_US + layer.vectors * a * PRODUCT_US)
    return total
