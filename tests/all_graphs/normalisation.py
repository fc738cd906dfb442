"""Softmax and normalisations."""

import numpy as np

from tests.all_graphs.builder import Builder, step


@step("normalisation", 2)
def softmax(b: Builder) -> None:
    x = b.tensor(1, 2, 3, 4, 5)
    attributes = {} if b.chance(4) else {"axis": b.axis(len(b.shape(x)))}
    b.need(bool(attributes) or b.opset >= 13 or len(b.shape(x)) > 1)
    b.emit(b.pick(["Softmax", "LogSoftmax"]), [x], **attributes)


@step("normalisation", 2)
def batch_normalisation(b: Builder) -> None:
    x = b.tensor(2, 3, 4, 5)
    channels = b.shape(x)[1]
    inputs = [x, *(b.constant(channels) for _ in range(3)), b.constant(channels, low=0.5)]
    b.emit("BatchNormalization", inputs, **({"epsilon": 1e-3} if b.chance() else {}))


@step("normalisation", 2)
def layer_normalisation(b: Builder) -> None:
    op = b.pick(["LayerNormalization", "RMSNormalization"])
    b.need(b.opset >= (17 if op == "LayerNormalization" else 23))
    x = b.tensor(1, 2, 3, 4)
    rank = len(b.shape(x))
    axis = b.axis(rank)
    inputs = [x, b.constant(*b.shape(x)[axis % rank :])]
    if op == "LayerNormalization" and b.chance():
        inputs.append(b.constant(*b.shape(x)[axis % rank :]))
    outputs = [True, *(b.chance(4) for _ in range(2))] if op == "LayerNormalization" else [True]
    b.emit(op, inputs, outputs, axis=axis, **({"epsilon": 1e-2} if b.chance() else {}))


@step("normalisation", 2)
def channel_normalisation(b: Builder) -> None:
    x = b.tensor(3, 4, 5)
    channels = b.shape(x)[1]
    if b.opset < 21 or b.chance():
        b.emit("InstanceNormalization", [x, b.constant(channels), b.constant(channels)], epsilon=1e-2)
        return
    groups = b.pick([g for g in range(1, channels + 1) if channels % g == 0])
    # ONNX defines its variance as a difference of squares: of nearly equal numbers only rounding is left.
    parts = b.values[x].exact.reshape(len(b.values[x].exact) * groups, -1)
    b.need(bool((np.abs(parts.mean(axis=1)) <= 10 * parts.std(axis=1)).all()))
    b.emit("GroupNormalization", [x, b.constant(channels), b.constant(channels)], num_groups=groups, epsilon=1e-2)


@step("normalisation")
def local_normalisation(b: Builder) -> None:
    x = b.tensor(4)
    attributes = {"size": b.pick([1, 3, 5]), "alpha": b.pick([0.1, 0.5]), "bias": b.pick([1.0, 0.7])}
    b.emit("LRN", [x], beta=b.pick([0.75, 0.5, 0.25, 1.0, 0.6]), **attributes)


@step("normalisation")
def plain_normalisation(b: Builder) -> None:
    if b.opset >= 9 and b.chance():
        x, axes = b.tensor(4), b.pick([[0, 2, 3], [1], [0, 1, 2, 3], [2, 3]])
        # It subtracts squares: of nearly equal numbers little is left, though their sign, the result, is certain.
        b.need(float(b.values[x].exact.std(axis=tuple(axes)).min()) > 0.05)
        b.emit("MeanVarianceNormalization", [x], axes=axes)
        return
    x = b.tensor(1, 2, 3, 4)
    b.emit("LpNormalization", [x], axis=b.axis(len(b.shape(x))), p=b.number(1, 2))
