"""Quantised models: types, scales, values against the float model, costs, equal bytes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import raptor
from raptor.tools.quantise.pow2_scales import ceil_power_of_two
from tests.paths import ROOT
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node, random
from tests.tools.quantise.support import BUILDERS, LEVELS, SCHEMES, constants, feeds_of, run, small_cnn

LEAST_DB = {4: 3, 8: 14}
"""Signal to noise of the outputs at least; a wrong scale, bias or channel gives less than 3 dB."""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_scheme(name: str, scheme: str) -> None:
    options = SCHEMES[scheme]
    source = BUILDERS[name]()
    found = raptor.quantize(source, samples=4, **options)
    model = onnx.load_from_string(found.onnx_bytes)
    onnx.checker.check_model(model, full_check=True)
    bits = options.get("weights", 8)
    assert (found.report.snr_db or 0) > LEAST_DB[bits]
    assert _signal_to_noise(source, found.onnx_bytes) > LEAST_DB[bits] - 2
    assert _weight_types(model) == {TensorProto.INT8 if bits == 8 else TensorProto.INT4, TensorProto.INT32}
    unsigned, wide = options.get("scheme") == "u8s8", options.get("activations") == 16
    kinds = {(False, False): TensorProto.INT8, (False, True): TensorProto.INT16}
    kinds |= {(True, False): TensorProto.UINT8, (True, True): TensorProto.UINT16}
    assert _activation_types(model) == {kinds[unsigned, wide]}
    assert any(layer.zero_point for layer in found.report.layers) == unsigned


@pytest.mark.parametrize("options", [{}, {"per_channel": True}, {"scheme": "pow2"}, {"scheme": "u8s8"}])
def test_layers_of_other_widths(options: dict[str, Any]) -> None:
    """One layer of 4 bits: its weights are rounded from the floats, and nothing else changes but its bias."""
    source = small_cnn()
    plain = raptor.quantize(source, samples=4, **options)
    name, *others = [layer.node for layer in plain.report.layers if layer.weight_bits]
    found = raptor.quantize(source, samples=4, layers={name: 4}, **options)
    assert [layer.weight_bits for layer in found.report.layers if layer.weight_bits] == [4, *(8 for _ in others)]
    assert LEAST_DB[4] < (found.report.snr_db or 0) < (plain.report.snr_db or 0)
    before, after = (onnx.load_from_string(q.onnx_bytes) for q in (plain, found))
    onnx.checker.check_model(after, full_check=True)
    old, new = (_constants(m) for m in (before, after))
    layer = next(n for n in after.graph.node if n.name == name)
    restoring = [next(n for n in after.graph.node if i in n.output) for i in layer.input[1:]]
    own = {i for node in restoring for i in node.input}
    same = [key for key in old if key not in own and not np.array_equal(old[key], new[key])]
    assert same == []
    reals = [values[restoring[0].input[0]].astype(np.float64) * _wide(values, restoring[0]) for values in (old, new)]
    steps = [_wide(values, restoring[0]) for values in (old, new)]
    assert np.abs(new[restoring[0].input[0]].astype(np.int64)).max() <= 7
    assert (np.abs(reals[0] - reals[1]) <= 0.5001 * (steps[0] + steps[1])).all()


def _wide(values: dict[str, Any], node: onnx.NodeProto) -> Any:
    """Returns the scales of weights so that they broadcast against them."""
    scale, rank = values[node.input[1]], values[node.input[0]].ndim
    return scale.reshape(-1, *[1] * (rank - 1)) if scale.size > 1 else scale.reshape(())


def _constants(model: onnx.ModelProto) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_a_program_of_mixed_widths() -> None:
    source = small_cnn()
    names = [layer.node for layer in raptor.quantize(source, samples=1).report.layers if layer.weight_bits]
    mixed = raptor.quantize(source, samples=4, per_channel=True, layers=dict.fromkeys(names[::2], 4))
    assert raptor.compile(onnx.load_from_string(mixed.onnx_bytes), cores=16, xbar=32).validate().passed


def _signal_to_noise(source: onnx.ModelProto, quantised: bytes) -> float:
    """Returns this figure by other means: the original model, on inputs that were no samples."""
    signal = noise = 0.0
    for seed in range(100, 104):
        feeds = feeds_of(quantised, seed)
        (wanted,), (found,) = run(source, feeds), run(quantised, feeds)
        signal += float(np.square(wanted, dtype=np.float64).sum())
        noise += float(np.square(wanted - found, dtype=np.float64).sum())
    return 10 * np.log10(signal / noise)


def _weight_types(model: onnx.ModelProto) -> set[int]:
    stored = {t.name: t.data_type for t in model.graph.initializer}
    inputs = [n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in stored]
    return {stored[name] for name in inputs if "weight" in name or name.startswith(("w", "b"))} | {TensorProto.INT32}


def _activation_types(model: onnx.ModelProto) -> set[int]:
    stored = {t.name: t.data_type for t in model.graph.initializer}
    return {stored[n.input[2]] for n in model.graph.node if n.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("options", [o for o in SCHEMES.values() if o.get("scheme") == "pow2"], ids=str)
@pytest.mark.parametrize("name", BUILDERS)
def test_powers_of_two_are_exact(name: str, options: dict[str, Any]) -> None:
    """All scales are powers of two, so that onnxruntime computes the same with and without its optimisations.

    With activations of 16 bits, sums are longer than the 24 bits of a float32; then they are only nearly the same.
    """
    quantised = raptor.quantize(BUILDERS[name](), samples=4, **options).onnx_bytes
    model = onnx.load_from_string(quantised)
    stored = constants(model)
    for found in (n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")):
        scales = stored[found.input[1]]
        assert (np.log2(scales) == np.rint(np.log2(scales))).all()
        assert not stored[found.input[2]].any()
    for seed in range(20, 25) if options.get("activations", 8) == 8 else ():
        feeds = feeds_of(quantised, seed)
        plain, optimised = (run(quantised, feeds, level) for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL))
        assert all(map(np.array_equal, plain, optimised))


@pytest.mark.parametrize("per_channel", [False, True])
def test_powers_of_two_round_up(per_channel: bool) -> None:
    """Each scale is the next power of two of the symmetric scheme; weights and biases are quantised again."""
    source = conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True)
    plain, powers = (
        constants(onnx.load_from_string(raptor.quantize(source, scheme=s, per_channel=per_channel).onnx_bytes))
        for s in ("s8s8", "pow2")
    )
    assert plain.keys() == powers.keys()
    for scale in (name for name in plain if name.endswith("_scale") and "quantized" not in name):
        assert (powers[scale] >= plain[scale]).all()
        assert (powers[scale] < 2 * plain[scale]).all()
    floats = constants(source)
    weight, bias = (next(n for n in floats if floats[n].ndim == rank) for rank in (4, 1))
    shape = (-1, 1, 1, 1) if per_channel else ()
    scale = powers[f"{weight}_scale"]
    assert np.array_equal(powers[f"{weight}_quantized"], np.rint(floats[weight] / scale.reshape(shape)).astype(np.int8))
    product = powers["x_scale"] * scale
    assert np.array_equal(powers[f"{bias}_quantized_scale"], product.reshape(-1))
    assert np.array_equal(powers[f"{bias}_quantized"], np.rint(floats[bias] / product))


def test_next_power() -> None:
    scales = np.array([1, 1.0001, 0.5, 0.3, 3, np.nextafter(np.float32(4), 5), 2.0**-100], np.float32)
    assert ceil_power_of_two(scales).tolist() == [1, 2, 0.5, 0.5, 4, 8, 2.0**-100]
    assert ceil_power_of_two(scales).dtype == np.float32


def test_ranges_come_from_the_samples(tmp_path: Path) -> None:
    source = conv_model((1, 2, 3, 3), 4)
    pixels = np.random.default_rng(0).uniform(-1, 1, (7, 2, 3, 3)).astype(np.float32)
    pixels[4, 0, 0, 0], pixels[6, 0, 0, 0] = 3, 5
    np.savez(tmp_path / "data.npz", x=pixels)
    for count, largest in ((None, 5), (5, 3)):
        report = raptor.quantize(source, data=tmp_path / "data.npz", samples=count).report
        assert report.samples == (count or 7)
        assert report.layers[0].scale == pytest.approx(2 * largest / 254)
        assert (report.seed, report.data) == (None, str(tmp_path / "data.npz"))


@pytest.mark.parametrize("shape", [(3, 5, 4, 4), (3, 1, 5, 4, 4)])
def test_samples_in_the_first_axis(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones(shape), more=np.zeros(3))
    found = raptor.quantize(conv_model((1, 5, 4, 4), 4), data=tmp_path / "data.npz")
    assert found.report.samples == 3


def test_the_samples_are_those_of_validate() -> None:
    """Sample i has the seed of the first plus i, so one sample of seed 3 is the fourth of seed 0."""
    source = conv_model((1, 5, 4, 4), 4)
    first = raptor.quantize(source, seed=3, samples=1).report.layers[0].scale
    largest = np.abs(np.random.default_rng(3).standard_normal((1, 5, 4, 4), dtype=np.float32)).max()
    assert first == pytest.approx(2 * largest / 254)


def test_the_cost_of_a_layer() -> None:
    """The figures of a model with two layers, by hand from the three models that they compare."""
    nodes = [node("MatMul", "x v", "h"), node("MatMul", "h w", "y")]
    source = make_model(nodes, {"x": (1, 8)}, {"y": 2}, {"v": random(8, 8, seed=1), "w": random(8, 8, seed=2)})
    found = raptor.quantize(source, samples=1)
    inputs, first, second = found.report.layers
    assert [x.tensor for x in found.report.layers] == ["x", "h", "y"]
    x = np.random.default_rng(0).standard_normal((1, 8), dtype=np.float32)
    floats = {"x": x, "h": x @ random(8, 8, seed=1)}
    floats["y"] = floats["h"] @ random(8, 8, seed=2)
    stored = constants(onnx.load_from_string(found.onnx_bytes))
    v, w = (stored[f"{n}_quantized"] * stored[f"{n}_scale"] for n in "vw")

    def rounded(values: Any, name: str) -> Any:
        return np.clip(np.rint(values / stored[f"{name}_scale"]), -128, 127) * stored[f"{name}_scale"]

    def decibels(wanted: Any, got: Any) -> float:
        return 10 * np.log10(np.square(wanted).sum() / np.square(wanted - got).sum())

    h = rounded(rounded(x, "x") @ v, "h")
    assert inputs.snr_db == inputs.own_snr_db == pytest.approx(decibels(x, rounded(x, "x")), abs=1e-3)
    assert first.snr_db == first.own_snr_db == pytest.approx(decibels(floats["h"], h), abs=1e-3)
    assert second.snr_db == pytest.approx(decibels(floats["y"], rounded(h @ w, "y")), abs=1e-3)
    alone = rounded(rounded(floats["h"], "h") @ w, "y")
    assert second.own_snr_db == pytest.approx(decibels(floats["y"], alone), abs=1e-3)
    assert found.report.snr_db == second.snr_db


def test_the_names_of_layers() -> None:
    report = raptor.quantize(small_cnn(), samples=2).report
    assert [layer.op_type for layer in report.layers] == [
        *("input", "Conv + Relu", "Conv", "Add + Clip", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm")
    ]
    assert [layer.weight_bits for layer in report.layers] == [None, 8, 8, None, None, None, None, 8]
    assert report.floats == ()
    assert any("dimension N" in note for note in report.notes)


def test_what_stays_in_float_is_listed() -> None:
    nodes = [node("MatMul", "x w", "h"), node("Exp", "h", "e"), node("MatMul", "e w", "y")]
    source = make_model(nodes, {"x": (1, 8)}, {"y": 2}, {"w": random(8, 8)})
    assert [f.op_type for f in raptor.quantize(source).report.floats] == []
    nodes = [node("MatMul", "x w", "h"), node("Exp", "h", "y")]
    source = make_model(nodes, {"x": (1, 8)}, {"y": 2}, {"w": random(8, 8)})
    assert [f.op_type for f in raptor.quantize(source).report.floats] == ["Exp"]


@pytest.mark.parametrize("factors", [{}, {"alpha": 0.5}, {"beta": 0.25}, {"alpha": 3.0, "beta": 0.0}, {"transB": 1}])
@pytest.mark.parametrize("shape", [(6,), (1, 6), (1,), (), (2, 6), (2, 1)])
def test_a_gemm_of_any_form(factors: dict[str, float], shape: tuple[int, ...]) -> None:
    weight = random(6, 5, seed=1) if "transB" in factors else random(5, 6, seed=1)
    source = make_model(
        [node("Gemm", "x w c", "y", **factors)], {"x": (2, 5)}, {"y": 2}, {"w": weight, "c": 4 * random(*shape, seed=2)}
    )
    for options in ({}, {"per_channel": True}, {"scheme": "pow2", "per_channel": True}):
        found = raptor.quantize(source, **options)
        assert _signal_to_noise(source, found.onnx_bytes) > 30
        assert found.report.floats == ()


def test_opsets_before_the_types_are_converted() -> None:
    nodes = [node("Conv", "x w", "y")]
    for version in (9, 11, 17, 21):
        source = make_model(nodes, {"x": (1, 3, 5, 5)}, ["y"], {"w": random(4, 3, 3, 3)}, opset=version)
        for options, least in (({"per_channel": True}, 13), ({"weights": 4}, 21), ({"activations": 16}, 21)):
            model = onnx.load_from_string(raptor.quantize(source, **options).onnx_bytes)
            versions = {o.domain: o.version for o in model.opset_import}
            assert versions[""] == max(version, least)
            assert {n.domain for n in model.graph.node} == {""}


def test_external_data(tmp_path: Path) -> None:
    source = small_cnn()
    wanted = raptor.quantize(source).onnx_bytes
    onnx.save(source, str(tmp_path / "model.onnx"), save_as_external_data=True, location="weights", size_threshold=0)
    assert raptor.quantize(tmp_path / "model.onnx").onnx_bytes == wanted


def test_shapes_and_constants() -> None:
    source = small_cnn()
    for options in ({"shapes": {"x": (3, 3, 8, 8)}}, {"dims": {"N": 3}}):
        found = onnx.load_from_string(raptor.quantize(source, **options).onnx_bytes)
        assert [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim] == [3, 3, 8, 8]
    nodes = [node("Conv", "x w", "c"), node("Mul", "c scale", "y")]
    source = make_model(nodes, {"x": (1, 3, 5, 5), "scale": (1,)}, ["y"], {"w": random(4, 3, 3, 3)})
    found = onnx.load_from_string(raptor.quantize(source, constants={"scale": 2.0}).onnx_bytes)
    assert [v.name for v in found.graph.input] == ["x"]


HASHED = """
import hashlib, raptor
from tests.tools.quantise.support import BUILDERS, SCHEMES
for name in ("small_cnn", "transformer"):
    for scheme in ("s8s8", "u8s8 per channel", "4 bits pow2 per channel"):
        found = raptor.quantize(BUILDERS[name](), samples=2, **SCHEMES[scheme])
        print(hashlib.sha256(found.onnx_bytes + found.report.model_dump_json().encode()).hexdigest())
"""


def test_equal_arguments_give_equal_bytes() -> None:
    """Two processes, whose hashes of strings differ."""
    told = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert len(set(told.pop().split())) == 6


def test_the_root_logger_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    before = list(logging.getLogger().handlers)
    raptor.quantize(small_cnn(), samples=1, weights=4)
    assert logging.getLogger().handlers == before
    logging.getLogger().warning("heard")
    assert [r.message for r in caplog.records] == ["heard"]


def test_int4_is_packed() -> None:
    model = onnx.load_from_string(raptor.quantize(small_cnn(), weights=4, scheme="pow2").onnx_bytes)
    (weight,) = [t for t in model.graph.initializer if t.data_type == TensorProto.INT4 and list(t.dims) == [8, 3, 3, 3]]
    assert len(weight.raw_data) == 8 * 3 * 3 * 3 / 2
    values = numpy_helper.to_array(weight).astype(int)
    assert np.abs(values).max() in (4, 5, 6, 7)


@pytest.mark.parametrize("scheme", ["s8s8", "u8s8", "pow2"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_of_4_bits_are_from_minus_7_to_7(scheme: Any, per_channel: bool) -> None:
    """-8 would need a fourth bit of magnitude, which a cell would use for this code alone."""
    model = onnx.load_from_string(
        raptor.quantize(small_cnn(), weights=4, scheme=scheme, per_channel=per_channel).onnx_bytes
    )
    codes = [numpy_helper.to_array(t).astype(np.int64) for t in model.graph.initializer if t.data_type == 22]
    weights = [c for c in codes if c.size > 16]
    assert len(weights) >= 2
    assert all(np.abs(c).max() <= 7 for c in weights)
    assert scheme == "pow2" or all(np.abs(c).max() == 7 for c in weights)
