"""LSTM, GRU and RNN against onnxruntime, on the graph and in the instruction streams."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from raptor.common.errors import UnsupportedError
from raptor.frontend import load
from raptor.graph.evaluate import evaluate_graph
from raptor.graph.ir import Filter
from tests.pipeline import check
from tests.recurrent_models import BATCH, HIDDEN, INPUTS, OP_TYPES, STEPS, recurrent
from tests.tiny_models import compare, golden, make_model, node, random


@pytest.mark.parametrize("op_type", OP_TYPES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("extra", "computed"), [("", ""), ("B", ""), ("Bh", ""), ("Bh", "h"), ("h", "h")])
def test_directions(op_type: str, direction: str, extra: str, computed: str):
    compare(recurrent(op_type, direction=direction, extra=extra, computed=computed))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("extra", "computed"), [("BhcP", ""), ("Bhc", "hc"), ("P", ""), ("BcP", "c"), ("BhP", "")])
def test_lstm_cells_and_peepholes(direction: str, extra: str, computed: str):
    compare(recurrent("LSTM", direction=direction, extra=extra, computed=computed))


def test_lstm_of_coupled_gates():
    compare(recurrent("LSTM", extra="Bhc", input_forget=1))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extra", ["", "B", "Bh"])
def test_gru_linear_before_reset(direction: str, extra: str):
    compare(recurrent("GRU", direction=direction, extra=extra, linear_before_reset=1))


@pytest.mark.parametrize("op_type", OP_TYPES)
@pytest.mark.parametrize("outputs", ["y", "- h_n", "y h_n"])
def test_any_outputs(op_type: str, outputs: str):
    compare(recurrent(op_type, extra="B", outputs=outputs))


def test_last_cell_alone():
    compare(recurrent("LSTM", extra="B", outputs="- - c_n"))


@pytest.mark.parametrize("op_type", OP_TYPES)
@pytest.mark.parametrize("sizes", [(1, 1, 3, 2), (1, 2, 3, 1), (4, 1, 1, 1), (2, 3, 1, 4)])
def test_sizes(op_type: str, sizes: tuple[int, int, int, int]):
    compare(recurrent(op_type, extra="B", sizes=sizes))


@pytest.mark.parametrize(
    ("op_type", "names", "parameters"),
    [
        ("RNN", ["Relu"], {}),
        ("RNN", ["Sigmoid"], {}),
        ("RNN", ["LeakyRelu"], {"activation_alpha": [0.2]}),
        ("RNN", ["Elu"], {"activation_alpha": [0.7]}),
        ("RNN", ["Softsign"], {}),
        ("RNN", ["Softplus"], {}),
        ("RNN", ["ThresholdedRelu"], {"activation_alpha": [0.5]}),
        ("RNN", ["HardSigmoid"], {"activation_alpha": [0.3], "activation_beta": [0.4]}),
        ("RNN", ["ScaledTanh"], {"activation_alpha": [0.8], "activation_beta": [0.7]}),
        ("RNN", ["Affine"], {"activation_alpha": [0.3], "activation_beta": [0.1]}),
        ("GRU", ["HardSigmoid", "Relu"], {}),
        ("GRU", ["Sigmoid", "Sigmoid"], {}),
        ("LSTM", ["Sigmoid", "Relu", "Tanh"], {}),
        ("LSTM", ["HardSigmoid", "Tanh", "Relu"], {}),
    ],
)
def test_activations(op_type: str, names: list[str], parameters: dict[str, Any]):
    compare(recurrent(op_type, extra="B", activations=names, **parameters))


def test_activations_of_each_direction():
    names = ["Sigmoid", "Tanh", "HardSigmoid", "Relu"]
    compare(recurrent("GRU", extra="B", direction="bidirectional", activations=names))


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_clip(op_type: str):
    compare(recurrent(op_type, extra="Bh", clip=0.5))


def test_full_sequences():
    compare(recurrent("LSTM", lengths=[STEPS] * BATCH))


def test_steps_share_their_crossbars():
    filters = [n.operator for n in load(recurrent("LSTM", extra="Bh")).graph.nodes if isinstance(n.operator, Filter)]
    keys = [f.key for f in filters if f.key]
    assert len(keys) == STEPS
    assert len(set(keys)) == 1


@pytest.mark.parametrize("op_type", OP_TYPES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_batch_first(op_type: str, direction: str):
    """onnxruntime has no layout 1: compared with layout 0, inputs and outputs transposed."""
    model = recurrent(op_type, extra="Bh", computed="h", direction=direction)
    x = {"x": random(STEPS, BATCH, INPUTS), "h": random(1 if direction == "forward" else 2, BATCH, HIDDEN)}
    wanted = golden(model, x)
    model.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_value, dims[1].dim_value = dims[1].dim_value, dims[0].dim_value
    found = evaluate_graph(load(model).graph, {n: v.swapaxes(0, 1) for n, v in x.items()})
    np.testing.assert_allclose(found["y"], wanted["y"].transpose(2, 0, 1, 3), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found["h_n"], wanted["h_n"].swapaxes(0, 1), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op_type", OP_TYPES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_in_the_streams(op_type: str, direction: str):
    extra = "BhcP" if op_type == "LSTM" else "Bh"
    check(recurrent(op_type, extra=extra, computed="h", direction=direction), xbar=8, xbars_per_core=16)


def test_large_hidden_state_in_the_streams():
    check(recurrent("LSTM", extra="B", sizes=(3, 1, 12, 20)), xbar=8, xbars_per_core=64)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (recurrent("RNN", computed="R"), "'R' must be a constant"),
        (recurrent("GRU", lengths=[3, 2]), r"its sequences \[3, 2\] are shorter than 3 steps"),
    ],
)
def test_refusals(model: ModelProto, reason: str):
    with pytest.raises(UnsupportedError, match=reason):
        load(model)


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_a_constant_sequence(op_type: str):
    """Only the first state is computed."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    weights = {"s": random(4, 2, 5, seed=3), "w": random(1, 3 * gates, 5), "r": random(1, 3 * gates, 3, seed=1)}
    layer = node(op_type, "s w r - - h", "y", hidden_size=3)
    check(make_model([layer], {"h": (1, 2, 3)}, {"y": 4}, weights), xbar=16, cores=8, xbars_per_core=16)
