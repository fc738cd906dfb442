"""QONNX and networks of signs: the translation against qonnx's own executor, and what is compiled of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from models.trained import BINARY_MODEL, DigitImages, load_images, train_binary
from models.trained.train_digits import cross_entropy
from raptor.common.errors import UnsupportedError, UserError
from raptor.frontend.canonical import standardise
from raptor.frontend.loading import load
from raptor.frontend.qonnx import absorb_chains
from raptor.graph.ir import Filter

VECTORS = np.load(Path(__file__).parent / "vectors" / "qonnx.npz")
"""Models, inputs and outputs, by `vectors/make_qonnx.py`."""
CASES = len(VECTORS.files) // 3
DOMAIN = "qonnx.custom_op.general"


def model_of(case: int) -> ModelProto:
    return ModelProto.FromString(VECTORS[f"model{case}"].tobytes())


def computed(onnx_bytes: bytes, inputs: Sequence[Any], name: str = "x") -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(onnx_bytes, options, ["CPUExecutionProvider"])
    return np.stack([np.asarray(session.run(None, {name: x})[0]) for x in inputs])


def is_equal(case: int) -> bool:
    found = computed(standardise.read_standard_model(model_of(case)).onnx_bytes, VECTORS[f"x{case}"])
    return np.array_equal(found, VECTORS[f"y{case}"])


def test_translations_compute_what_qonnx_computes():
    assert [case for case in range(CASES) if not is_equal(case)] == []


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_threshold_beside_the_right_one_is_found(monkeypatch: pytest.MonkeyPatch, shift: int):
    right = absorb_chains.ThresholdConditions.convert_to_sums

    def wrong(self: Any, low: Any, high: Any) -> Any:
        signs, thresholds = right(self, low, high)
        return signs, thresholds + shift

    monkeypatch.setattr(absorb_chains.ThresholdConditions, "convert_to_sums", wrong)
    assert any(not is_equal(case) for case in range(CASES))


def test_a_flipped_channel_without_its_sign_is_found(monkeypatch: pytest.MonkeyPatch):
    right = absorb_chains.ThresholdConditions.convert_to_sums
    monkeypatch.setattr(
        absorb_chains.ThresholdConditions,
        "convert_to_sums",
        lambda *a: (np.ones_like((found := right(*a))[0]), found[1]),
    )
    assert any(not is_equal(case) for case in range(CASES))


def test_the_streams_of_the_binary_network():
    """It is of integers from the image on, with weights of 2 bits; only the last normalisation is of floats."""
    graph = load(BINARY_MODEL).graph
    assert [n.operator.weight_bits for n in graph.nodes if isinstance(n.operator, Filter)] == [2, 2, 2, 2]
    assert graph.float_nodes == ("fc2", "norm4")
    assert raptor.compile(BINARY_MODEL, xbar=64, cores=64).validate().passed


def test_the_binary_network_reads_digits():
    _, test = load_images()
    scores = computed(standardise.read_standard_model(BINARY_MODEL).onnx_bytes, test.pixels[:, None], "image")
    assert (scores[:, 0].argmax(1) == test.digits).mean() >= 0.93


def test_the_binary_file_is_the_network_of_the_script():
    """The stored weights in the script's network give the stored file, and the same scores in numpy."""
    stored = onnx.load(BINARY_MODEL)
    network = train_binary.build_network(np.random.default_rng(0))
    constants = {t.name: numpy_helper.to_array(t) for t in stored.graph.initializer}
    for layer in network.all_layers():
        own = {key: constants[f"{layer.name}.{key}"] for key in layer.weights}
        if isinstance(layer, train_binary.BinaryConv):
            own = {key: value.reshape(len(value), -1).T for key, value in own.items()}
        layer.weights = {key: value.astype(np.float32) for key, value in own.items()}
        if isinstance(layer, train_binary.BatchNorm):
            layer.mean, layer.variance = (constants[f"{layer.name}.{key}"] for key in ("mean", "variance"))
            layer.training = False
    assert train_binary.to_onnx(network) == stored
    _, test = load_images()
    scores = computed(standardise.read_standard_model(BINARY_MODEL).onnx_bytes, test.pixels[:40, None], "image")
    assert np.abs(network.forward(test.pixels[:40]) - scores[:, 0]).max() < 1e-4


def test_training_lowers_the_loss():
    training, _ = load_images()
    few = DigitImages(training.pixels[:64], training.digits[:64])
    losses: list[float] = []
    for epochs in (0, 8):
        network = train_binary.train_network(few, epochs)
        for layer in network.all_layers():
            if isinstance(layer, train_binary.BatchNorm):
                layer.training = True
        losses.append(cross_entropy(network.forward(few.pixels), few.digits)[0])
    assert losses[1] < 0.8 * losses[0]


@pytest.mark.slow
def test_random_graphs_run():
    for case in range(CASES):
        assert raptor.compile(model_of(case), cores=8, xbar=32).validate().passed, case


def signs(*, scale: float = 1.0) -> ModelProto:
    """A float network of signs, as it is exported without QONNX."""
    rng = np.random.default_rng(5)
    weights = [np.sign(rng.standard_normal(s)).astype(np.float32) * np.float32(scale) for s in ((12, 8), (8, 6))]
    nodes = [
        helper.make_node("Sign", ["x"], ["s"]),
        helper.make_node("MatMul", ["s", "w0"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Sign", ["a"], ["t"]),
        helper.make_node("MatMul", ["t", "w1"], ["y"]),
    ]
    constants = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    constants.append(numpy_helper.from_array(rng.integers(-3, 4, 8).astype(np.float32) / 2, "b"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, k]) for n, k in (("x", 12), ("y", 6))]
    graph = helper.make_graph(nodes, "signs", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_networks_of_signs_have_integers(scale: float):
    model = signs(scale=scale)
    translated = standardise.read_standard_model(model)
    inputs = np.random.default_rng(1).integers(-2, 3, (20, 1, 12)).astype(np.float32)
    assert np.array_equal(computed(translated.onnx_bytes, inputs), computed(model.SerializeToString(), inputs))
    matrices = [t for t in translated.proto.graph.initializer if t.data_type == TensorProto.INT2 and len(t.dims) == 2]
    assert [tuple(t.dims) for t in matrices] == [(12, 8), (8, 6)]


def test_signs_before_weights_of_floats_stay_floats():
    model = signs()
    weights = numpy_helper.to_array(model.graph.initializer[1]) * np.arange(1, 7, dtype=np.float32) / 7
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights, "w1"))
    assert load(model).graph.arithmetic == "float"


def quant(**changes: Any) -> ModelProto:
    """A layer behind a `Quant` node, with another attribute, or another constant in place of 0.5, 0 and 4."""
    numbers = {"scale": 0.5, "zero": 0.0, "bits": 4.0} | {
        k: v for k, v in changes.items() if k in ("scale", "zero", "bits")
    }
    given = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"} | {
        k: v for k, v in changes.items() if k in ("narrow", "rounding_mode")
    }
    node = helper.make_node(changes.get("op", "Quant"), ["x", *numbers], ["q"], "act", domain=DOMAIN, **given)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xq"]
    constants = [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in numbers.items()]
    graph = helper.make_graph([node], "one", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 0.0}, "act (Quant): its scale is 0.0, must be a finite number above 0"),
        ({"zero": 0.5}, "act (Quant): its zero point is 0.5, must be a whole number"),
        ({"bits": 33.0}, "act (Quant): its width is 33 bits; widths from 1 to 32 are supported"),
        ({"bits": 20.0}, "act (Quant): its codes reach from -524288 to 524287; computed integers have at most 16 bits"),
        (
            {"rounding_mode": "FLOOR"},
            "act (Quant): its rounding mode is FLOOR; of computed tensors, ROUND is supported",
        ),
        ({"rounding_mode": "SIDEWAYS"}, "act (Quant): its rounding mode 'SIDEWAYS' is not one of"),
        ({"op": "Trunc"}, "1 node cannot be compiled:\n  act (Trunc): this operator of QONNX is not supported"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(UserError) as error:
        standardise.read_standard_model(quant(**changes))
    assert str(error.value).startswith(message)


def test_a_scale_that_is_computed_is_refused():
    model = quant()
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    with pytest.raises(UserError, match="its scale must be a constant"):
        standardise.read_standard_model(model)


@pytest.mark.parametrize(
    ("op_type", "domain", "reason"),
    [
        ("Conv", "qonnx.custom_op.channels_last", "its channels are last, which is not supported"),
        ("MaxPoolNHWC", "qonnx.custom_op.general", "this operator of QONNX is not supported"),
        ("Mystery", "of.mine", "operators of the domain of.mine are not supported"),
        ("Mystery", "", "not supported"),
    ],
)
def test_trial_a16_all_nodes_that_have_no_place_in_a_translation(op_type: str, domain: str, reason: str):
    model = quant()
    last = model.graph.output[0].name
    for name, source in (("one", last), ("two", "one")):
        model.graph.node.append(helper.make_node(op_type, [source], [name], name=name, domain=domain))
    model.graph.output[0].name = "two"
    if domain not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    with pytest.raises(UnsupportedError) as error:
        standardise.read_standard_model(model)
    assert [n.node for n in error.value.nodes] == ["one", "two"]
    assert all(n.reason.startswith(reason) for n in error.value.nodes)


def test_standard_models_are_left_alone():
    model = quant()
    model.graph.node[0].CopyFrom(helper.make_node("Relu", ["x"], ["q"]))
    assert onnx.ModelProto.FromString(standardise.read_standard_model(model).onnx_bytes) == model
