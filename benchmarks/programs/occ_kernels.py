"""The kernels of the evaluation of OCC: writes and products of crossbars, and the share of work on crossbars.

python -m benchmarks.programs.occ_kernels [FILE]     writes the page docs/how-to/occ-kernels.md

The figures of the page are closed forms at OCC's sizes. tests/device/test_kernels.py computes every kernel at a small
size, and compares its values with numpy and its figures with the same closed forms.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raptor.device.graph import GraphValue, ProductGraph
from raptor.device.kernels import ProductCosts, contraction, convolution, counts, kronecker, matmul, matvec
from raptor.device.networks import lstm, mlp, wavenet_cell

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "occ-kernels.md"
XBAR = (64, 64)
SIZE = 256

Gemm = tuple[int, int, int]
"""Sizes m, k, n of a product [m, k] x [k, n]."""


@dataclass(frozen=True)
class OccKernel:
    """A kernel by size. `gemms`: its matrix products, each with the number of times its matrix is used.

    `operations`: operations of the host, without additions of partial sums. `small`: size at which tests compute it.
    `said`: the share on crossbars or of used cells that OCC reports.
    """

    name: str
    what: str
    gemms: Callable[[int], Sequence[tuple[Gemm, int]]]
    build: Callable[[ProductGraph, int], GraphValue]
    want: Callable[[int], Any]
    operations: Callable[[int], int] = lambda _: 0
    size: int = SIZE
    small: int = 6
    said: str = ""


def small_integers(*shape: int, seed: int = 0) -> Any:
    """Returns small integers, whose products are exact in float32."""
    return np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(np.float32)


def count_once(*sizes: Gemm) -> list[tuple[Gemm, int]]:
    return [(size, 1) for size in sizes]


def correlation(n: int, dims: int) -> Any:
    """Returns the convolution of 3 maps with 3 filters of size 3, by its definition."""
    x, f, axes = small_integers(1, 3, *[n] * dims), small_integers(3, 3, *[3] * dims), tuple(range(2, 2 + dims))
    letters = "uvw"[:dims]
    windows = np.lib.stride_tricks.sliding_window_view(x, [3] * dims, axis=axes)
    return np.einsum(f"nc...{letters},oc{letters}->no...", windows, f)


def convolution_kernel(dims: int, small: int, said: str) -> OccKernel:
    return OccKernel(
        f"conv{dims}d",
        f"3 maps of {'x'.join([str(SIZE)] * dims)}, 3 filters of {'x'.join(['3'] * dims)}",
        lambda n: count_once(((n - 2) ** dims, 3 * 3**dims, 3)),
        lambda graph, n: convolution(graph, small_integers(1, 3, *[n] * dims), small_integers(3, 3, *[3] * dims)),
        lambda n: correlation(n, dims),
        small=small,
        said=said,
    )


def lstm_weights(n: int) -> tuple[Any, Any, Any, Any]:
    """Returns inputs of four steps, weights, recurrent weights and bias of an LSTM with `n` hidden states."""
    return (
        small_integers(4, n),
        small_integers(n, 4 * n) / 4,
        small_integers(n, 4 * n, seed=1) / 4,
        small_integers(4 * n) / 4,
    )


def lstm_by_definition(n: int) -> Any:
    x, w, u, b = (np.asarray(value, np.float64) for value in lstm_weights(n))
    h = c = np.zeros(n)
    for step in x:
        i, f, g, o = np.split(step @ w + h @ u + b, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
    return h[None]


def wavenet_weights(n: int) -> tuple[Any, tuple[Any, Any], Any, Any]:
    """Returns 4 n samples, and the filters of a cell with `n` channels and 2 n skip channels."""
    gates = small_integers(n, n, 2) / 8, small_integers(n, n, 2, seed=1) / 8
    return small_integers(1, n, 4 * n), gates, small_integers(n, n, 1) / 8, small_integers(2 * n, n, 1) / 8


def wavenet(graph: ProductGraph, n: int) -> GraphValue:
    """Adds a cell. Returns its two outputs, concatenated along the channels."""
    both = wavenet_cell(graph, *wavenet_weights(n), dilation=2)
    return graph.host(lambda *parts: np.concatenate(parts, axis=1), both, (1, 3 * n, 4 * n))


def wavenet_by_definition(n: int) -> Any:
    x, (f, g), residual, skip = wavenet_weights(n)
    before = np.pad(x, ((0, 0), (0, 0), (2, 0)))[:, :, :-2]
    a, b = (np.einsum("oc,bct->bot", k[:, :, 0], before) + np.einsum("oc,bct->bot", k[:, :, 1], x) for k in (f, g))
    gated = np.tanh(a) / (1 + np.exp(-b))
    return np.concatenate([np.einsum("oc,bct->bot", k[:, :, 0], gated) + y for k, y in ((residual, x), (skip, 0))], 1)


def kronecker_vectors(n: int) -> tuple[list[Any], Any]:
    """Returns three matrices [n / 2, n], and `2 n` vectors of n x n x n."""
    return [small_integers(n // 2, n, seed=k) for k in range(3)], small_integers(2 * n, n, n, n)


KERNELS = (
    OccKernel(
        "mm",
        "256x256 x 256x256",
        lambda n: count_once((n, n, n)),
        lambda graph, n: matmul(graph, small_integers(n, n), small_integers(n, n, seed=1)),
        lambda n: small_integers(n, n) @ small_integers(n, n, seed=1),
        said="all cells used",
    ),
    OccKernel(
        "tmm",
        "the first transposed",
        lambda n: count_once((n, n, n)),
        lambda graph, n: matmul(graph, small_integers(n, n).T, small_integers(n, n, seed=1)),
        lambda n: small_integers(n, n).T @ small_integers(n, n, seed=1),
        said="all cells used",
    ),
    OccKernel(
        "2mm",
        "two products that do not depend on each other",
        lambda n: count_once((n, n, n), (n, n, n)),
        lambda graph, n: graph.host(
            lambda *both: np.stack(both),
            [matmul(graph, small_integers(n, n, seed=k), small_integers(n, n, seed=k + 2)) for k in (0, 1)],
            (2, n, n),
        ),
        lambda n: np.stack([small_integers(n, n, seed=k) @ small_integers(n, n, seed=k + 2) for k in (0, 1)]),
        said="all cells used",
    ),
    OccKernel(
        "3mm",
        "two products, and the product of both",
        lambda n: count_once((n, n, n), (n, n, n), (n, n, n)),
        lambda graph, n: matmul(
            graph, *(matmul(graph, small_integers(n, n, seed=k), small_integers(n, n, seed=k + 2)) for k in (0, 1))
        ),
        lambda n: (
            (small_integers(n, n) @ small_integers(n, n, seed=2))
            @ (small_integers(n, n, seed=1) @ small_integers(n, n, seed=3))
        ),
        said="all cells used",
    ),
    OccKernel(
        "mv",
        "256x256 x 256",
        lambda n: count_once((1, n, n)),
        lambda graph, n: matvec(graph, small_integers(n, n), small_integers(n)),
        lambda n: small_integers(n, n) @ small_integers(n),
        said="all cells used",
    ),
    OccKernel(
        "ab-acd-dbc",
        "contraction, all sizes 256",
        lambda n: count_once((n, n * n, n)),
        lambda graph, n: contraction(graph, "ab-acd-dbc", small_integers(n, n, n), small_integers(n, n, n, seed=1)),
        lambda n: np.einsum("acd,dbc->ab", small_integers(n, n, n), small_integers(n, n, n, seed=1)),
    ),
    OccKernel(
        "abc-acd-db",
        "contraction, all sizes 256",
        lambda n: count_once((n * n, n, n)),
        lambda graph, n: contraction(graph, "abc-acd-db", small_integers(n, n, n), small_integers(n, n)),
        lambda n: np.einsum("acd,db->abc", small_integers(n, n, n), small_integers(n, n)),
    ),
    OccKernel(
        "abcd-aebf-dfce",
        "contraction, all sizes 128",
        lambda n: count_once((n * n, n * n, n * n)),
        lambda graph, n: contraction(
            graph, "abcd-aebf-dfce", small_integers(n, n, n, n), small_integers(n, n, n, n, seed=1)
        ),
        lambda n: np.einsum("aebf,dfce->abcd", small_integers(n, n, n, n), small_integers(n, n, n, n, seed=1)),
        size=128,
        small=3,
    ),
    OccKernel(
        "kronecker3",
        "three matrices of 64x128, 256 vectors",
        lambda n: count_once((2 * n**3, n, n // 2), (n**3, n, n // 2), (n**3 // 2, n, n // 2)),
        lambda graph, n: kronecker(graph, *kronecker_vectors(n)),
        lambda n: np.einsum("xa,yb,zc,mabc->mxyz", *kronecker_vectors(n)[0], kronecker_vectors(n)[1]),
        size=128,
        small=4,
    ),
    convolution_kernel(1, 9, "convolutions use 2 % of the cells"),
    convolution_kernel(2, 5, "convolutions use 2 % of the cells"),
    convolution_kernel(3, 4, "convolutions use 2 % of the cells"),
    OccKernel(
        "mlp3",
        "256 vectors, three layers of 256 with bias and ReLU",
        lambda n: count_once((n, n, n), (n, n, n), (n, n, n)),
        lambda graph, n: mlp(
            graph, small_integers(n, n), [(small_integers(n, n, seed=k), small_integers(n, seed=k)) for k in (1, 2, 3)]
        ),
        lambda n: mlp_by_definition(n),
        operations=lambda n: 3 * 2 * n * n,
        said="99.5 % on crossbars",
    ),
    OccKernel(
        "lstm",
        "64 features, 64 hidden states, 4 steps",
        lambda n: [((4, n, 4 * n), 1), ((1, n, 4 * n), 4)],
        lambda graph, n: lstm(graph, *lstm_weights(n)),
        lstm_by_definition,
        operations=lambda n: 4 * 17 * n,
        size=64,
        small=5,
    ),
    OccKernel(
        "waveNet",
        "32 channels, 64 that skip, 128 samples, two taps",
        lambda n: count_once(*[(4 * n, 2 * n, n)] * 2, (4 * n, n, n), (4 * n, n, 2 * n)),
        wavenet,
        wavenet_by_definition,
        operations=lambda n: (3 + 1) * 4 * n * n,
        size=32,
        small=5,
        said="50 % on crossbars, 6.5 % of the cells",
    ),
)
"""All kernels of OCC's evaluation."""


def mlp_by_definition(n: int) -> Any:
    x = small_integers(n, n)
    for k in (1, 2, 3):
        x = np.maximum(x @ small_integers(n, n, seed=k) + small_integers(n, seed=k), 0)
    return x


@dataclass(frozen=True)
class KernelFigures:
    """Sums over the products of a kernel. `share`: part of the work on crossbars; `cells`: of the cells in use."""

    writes: int
    fewest_writes: int
    products: int
    share: float
    cells: float


def compute_figures(kernel: OccKernel, size: int, xbar: tuple[int, int]) -> KernelFigures:
    """Returns the closed forms of a kernel."""
    each: list[tuple[ProductCosts, int]] = [(counts(xbar, *gemm), times) for gemm, times in kernel.gemms(size)]
    macs = sum(c.macs * times for c, times in each)
    host = kernel.operations(size) + sum(c.additions * times for c, times in each)
    fewest = sum(c.fewest_writes for c, _ in each)
    return KernelFigures(
        sum(c.writes * times for c, times in each),
        fewest,
        sum(c.products * times for c, times in each),
        macs / (macs + host),
        sum(c.cells * c.fewest_writes for c, _ in each) / fewest,
    )


HEAD = """# The kernels of OCC

OCC compiles kernels of linear algebra for a host with four crossbars of phase-change memory, each of 64 x 64 weights
(Siemieniuk et al., "OCC: An Automated End-to-End Machine Learning Optimizing Compiler for Computing-In-Memory"). This
page has the figures of the same kernels, at the sizes of the paper, as
[graphs of products](device.md#graphs-and-schedulers). `make bench-occ` writes it.

- *tiled*: crossbars that are written if each tile of a product is written before it, which OCC calls `tile`, and the
  schedulers `asap` and `alap` do.
- *fewest*: no tile is written twice: `tile+interchange`, and the scheduler `min_writes`.
- *products*: vectors that the crossbars multiply.
- *on crossbars*: multiply-accumulates of crossbars, divided by those and the operations of the host: sums of partial
  results, biases, functions.
- *cells*: part of the written cells that a matrix uses.

"""
TAIL = """
All writes and products are closed forms of the sizes: a product [m, k] x [k, n] takes ceil(k/64) ceil(n/64) crossbars,
and is tiled by ceil(m/64). The tests compute every kernel at a small size under all schedulers, and find the values of
numpy and these figures.

Where the paper gives figures:

- Products of matrices use all cells, and convolutions of three maps 2 %, as here.
- `mlp3` runs to 99.5 % on crossbars. Here, the sums of the four partial results of an inner dimension of 256 are
  counted for the host, too; without them it is 99.2 %, and without the biases 99.6 %.
- `waveNet` runs to 50 % on crossbars: OCC offloads what makes the residual and the skipped output. Here, the dilated
  convolutions are products like the others. The 6.5 % of the cells are near those of a tile of 32 x 32 in four
  crossbars (6.25 %).
- The interchange of loops divides the writes by 7.4 on average; the paper does not give the figures of each kernel.
  Here, it divides them by ceil(m/64).
- The paper does not give the steps and features of `lstm`, the samples and taps of `waveNet`, and the vectors of
  `mlp3` and `kronecker3`; those of the table are ours.
"""


def render_page() -> str:
    """Returns the page."""
    lines = ["| kernel | sizes | tiled | fewest | products | on crossbars | cells | OCC says |", "|" + " --- |" * 8]
    for kernel in KERNELS:
        f = compute_figures(kernel, kernel.size, XBAR)
        counted = f"{f.writes:,} | {f.fewest_writes:,} | {f.products:,}"
        shares = f"{f.share:.1%} | {f.cells:.1%}".replace("%", " %")
        lines.append(f"| `{kernel.name}` | {kernel.what} | {counted} | {shares} | {kernel.said} |")
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(render_page(), encoding="utf-8")
