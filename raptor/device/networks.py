"""Networks as graphs of products: a perceptron, an LSTM and a WaveNet cell, the benchmarks of OCC."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from raptor.device.back_end import Array
from raptor.device.errors import ShapeError
from raptor.device.graph import ArrayOrNode, GraphValue, ProductGraph
from raptor.device.kernels import convolution, matmul


def mlp(graph: ProductGraph, x: ArrayOrNode, layers: Sequence[tuple[Array, Array]]) -> GraphValue:
    """Adds layers relu(x W + b) to vectors `x` [m, k], for weights [k, n] and biases [n]."""
    if not layers:
        raise ShapeError("a perceptron has at least one layer")
    value = x
    for weights, bias in layers:
        product = matmul(graph, value, weights)
        value = graph.host(partial(_relu, bias), [product], product.shape, 2 * product.shape[0] * product.shape[1])
    assert isinstance(value, GraphValue)
    return value


def lstm(graph: ProductGraph, x: Array, weights: Array, recurrent: Array, bias: Array) -> GraphValue:
    """Adds an LSTM over `x` [steps, features] with a zero initial state; returns its last state [1, hidden].

    `weights` [features, 4 hidden], `recurrent` [hidden, 4 hidden] and `bias` [4 hidden] hold the gates in the order
    input, forget, cell, output. The products with `x` do not wait for the state.
    """
    steps, hidden = len(x), recurrent.shape[0]
    if recurrent.shape != (hidden, 4 * hidden) or not steps:
        raise ShapeError(f"recurrent weights of {recurrent.shape} and {steps} steps are no LSTM")
    inputs = matmul(graph, x, weights)
    state = graph.host(partial(np.zeros, (2, hidden), np.float32), [], (2, hidden))
    for step in range(steps):
        product = matmul(graph, graph.host(_first, [state], (1, hidden)), recurrent)
        # 8 sums and 4 functions for the gates; 3 products, a sum and a function for the state.
        state = graph.host(partial(_lstm_step, step, bias), [inputs, product, state], (2, hidden), 17 * hidden)
    return graph.host(_first, [state], (1, hidden))


def wavenet_cell(
    graph: ProductGraph, x: ArrayOrNode, gates: tuple[Array, Array], residual: Array, skip: Array, *, dilation: int = 1
) -> tuple[GraphValue, GraphValue]:
    """Adds a WaveNet cell on `x` [1, channels, samples]; returns the input of the next cell, and the skip output.

    `gates`: filters [channels, channels, taps] of two causal, dilated convolutions, whose tanh and sigmoid are
    multiplied. `residual` [channels, channels, 1] and `skip` [skip, channels, 1] read the product.
    """
    source = x if isinstance(x, GraphValue) else graph.host(partial(np.asarray, x, np.float32), [], np.shape(x))
    _, channels, samples = source.shape
    past = dilation * (gates[0].shape[2] - 1)
    padded = graph.host(partial(_behind, past), [source], (1, channels, samples + past))
    both = [convolution(graph, padded, gate, dilation=dilation) for gate in gates]
    gated = graph.host(_gated, both, both[0].shape, 3 * channels * samples)
    left = convolution(graph, gated, residual)
    following = graph.host(np.add, [left, source], source.shape, channels * samples)
    return following, convolution(graph, gated, skip)


def _relu(bias: Array, value: Array) -> Array:
    return np.maximum(value + bias, np.float32(0))


def _first(state: Array) -> Array:
    return state[:1]


def _behind(past: int, value: Array) -> Array:
    """Pads samples with `past` zeros at the front."""
    return np.pad(value, ((0, 0), (0, 0), (past, 0)))


def _gated(value: Array, gate: Array) -> Array:
    return np.tanh(value) * _sigmoid(gate)


def _sigmoid(value: Array) -> Array:
    return 1 / (1 + np.exp(-value))


def _lstm_step(step: int, bias: Array, inputs: Array, product: Array, state: Array) -> Array:
    """Returns output and cell state [2, hidden] after a step."""
    hidden = state.shape[1]
    sums = inputs[step] + product[0] + bias
    i, f, g, o = (sums[start:stop] for start, stop in pairwise(range(0, 5 * hidden, hidden)))
    cell = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(g)
    return np.stack([_sigmoid(o) * np.tanh(cell), cell]).astype(np.float32)
