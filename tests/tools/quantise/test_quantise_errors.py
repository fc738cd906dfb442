"""Bad input of a quantisation: a sentence with what to change, and nothing left behind."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.frontend import load
from raptor.tools.cli import app
from raptor.tools.quantise import calibration_data
from tests.pipeline import conv_model
from tests.tiny_models import make_model, node, random

MODEL = conv_model((1, 5, 4, 4), 4, pads=(1, 1, 1, 1), bias=True, relu=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, in which temporary files would be as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def check_refused(folder: Path, message: str, model: Any = MODEL, **options: Any) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(UserError, match=message):
        raptor.quantize(model, **options)
    assert sorted(folder.rglob("*")) == before


def test_nothing_to_quantise(folder: Path) -> None:
    model = make_model([node("Relu", "x", "y")], {"x": (1, 4)}, {"y": 2})
    check_refused(folder, "nothing to quantise: no Conv, ConvTranspose, Gemm or MatMul", model)


def test_a_model_that_is_quantised(folder: Path) -> None:
    quantised = onnx.load_from_string(raptor.quantize(MODEL).onnx_bytes)
    check_refused(folder, r"already quantised: .* \(DequantizeLinear\) and 7 more; give the float model", quantised)
    zeros = {"w": np.zeros((4, 4), np.uint8)}
    model = make_model([node("MatMulInteger", "x w", "y")], {"x": (1, 4)}, {"y": 2}, zeros)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    check_refused(folder, r"already quantised: .* \(MatMulInteger\); give", model)


def test_widths_of_layers(folder: Path) -> None:
    check_refused(
        folder, "layers='nowhere': no layer with weights that are quantised; layers are ", layers={"nowhere": 4}
    )
    check_refused(folder, "layers=5: expected 8 or 4", layers={"nowhere": 5})
    check_refused(folder, "bits by name of the layer", layers=4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": np.zeros((1, 5, 4, 4))}, "nothing for input 'x'; its arrays: z"),
        ({}, "nothing for input 'x'; its arrays: none"),
        ({"x": np.zeros((3, 5, 4, 5))}, r"'x' has shape \(3, 5, 4, 5\), expected \(1, 5, 4, 4\) for one sample"),
        ({"x": np.zeros((5, 4, 4))}, r"'x' has shape \(5, 4, 4\)"),
        ({"x": np.zeros(())}, r"'x' has shape \(\)"),
        ({"x": np.zeros((0, 5, 4, 4))}, r"'x' has shape \(0, 5, 4, 4\)"),
        ({"x": np.full((3, 5, 4, 4), np.nan)}, "240 of 240 numbers of 'x' are not finite"),
        ({"x": np.full((1, 5, 4, 4), 1e300)}, "80 of 80 numbers of 'x' are not finite"),
        ({"x": np.array(["a"])}, "'x' holds <U1, expected numbers"),
        ({"x": np.array([{}], object)}, "'x' holds object, expected numbers"),
    ],
    ids=str,
)
def test_data_that_does_not_fit(arrays: dict[str, Any], message: str, folder: Path) -> None:
    np.savez("data.npz", **arrays)
    check_refused(folder, f"data='data.npz': {message}", data="data.npz")


def test_inputs_with_other_numbers_of_samples(folder: Path) -> None:
    nodes = [node("MatMul", "a w", "b"), node("Add", "b c", "y")]
    model = make_model(nodes, {"a": (1, 4), "c": (1, 4)}, {"y": 2}, {"w": random(4, 4)})
    np.savez("data.npz", a=np.ones((3, 4)), c=np.ones((2, 4)))
    check_refused(folder, "all inputs need as many samples, found 3 of 'a', 2 of 'c'", model, data="data.npz")
    assert raptor.quantize(model, data="data.npz", samples=2).report.samples == 2


def _zip(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


@pytest.mark.parametrize(
    "make",
    [lambda: b"", lambda: b"no archive", lambda: _zip("x.npy", b"no array"), lambda: _zip("x.npy", b"\x93NUMPY\x01\0")],
)
def test_a_file_that_is_not_npz(make: Callable[[], bytes], folder: Path) -> None:
    Path("data.npz").write_bytes(make())
    check_refused(folder, "data='data.npz': not a .npz file", data="data.npz")


def test_a_file_that_is_not_there(folder: Path) -> None:
    check_refused(folder, "data='data.npz': no such file", data="data.npz")
    check_refused(folder, "not a .npz file", data=folder)


def test_an_array_that_says_to_be_huge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by its header, before memory is allocated."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 5, 4, 4)})
    Path("data.npz").write_bytes(_zip("x.npy", header.getvalue()))
    check_refused(folder, "'x' .* is larger than 8 GiB", data="data.npz")
    monkeypatch.setattr(calibration_data, "MOST_BYTES", 2**60)
    check_refused(folder, "'x' .* needs more bytes than the file has", data="data.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": 3}, "weights=3: expected 8 or 4"),
        ({"weights": 16}, "weights=16: expected 8 or 4"),
        ({"activations": 4}, "activations=4: expected 8 or 16"),
        ({"scheme": "u8u8"}, "scheme='u8u8': expected one of: s8s8, u8s8, pow2"),
        ({"per_channel": "yes"}, "per_channel='yes': expected True or False"),
        ({"samples": 0}, "samples=0: expected a whole number"),
        ({"seed": -1}, "seed=-1: expected a whole number"),
        ({"shapes": {"x": (1, 5, 4, 5)}}, "dimension 3 is 4 in the model"),
        ({"constants": {"q": 1}}, "no input 'q'"),
    ],
)
def test_options(options: dict[str, Any], message: str, folder: Path) -> None:
    check_refused(folder, message, **options)


def test_weights_that_are_not_finite(folder: Path) -> None:
    model = make_model(
        [node("MatMul", "x w", "y")], {"x": (1, 4)}, {"y": 2}, {"w": np.full((4, 4), np.inf, np.float32)}
    )
    check_refused(folder, "weights 'w': 16 of 16 values are not finite", model)


def test_a_model_that_onnxruntime_cannot_run(folder: Path) -> None:
    model = make_model([node("Conv", "x w", "y")], {"x": (1, 3, 5, 5)}, ["y"], {"w": random(4, 2, 3, 3)})
    check_refused(folder, "onnxruntime cannot|not a valid ONNX model", model)


def test_an_existing_file_is_not_replaced(folder: Path) -> None:
    found = raptor.quantize(MODEL)
    found.save("int8.onnx")
    with pytest.raises(UserError, match=r"-o int8\.onnx: exists; force=True replaces it"):
        found.save("int8.onnx")
    found.save("int8.onnx", force=True)
    assert Path("int8.onnx").read_bytes() == found.onnx_bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weights", "5"), "--weights 5: expected 8 or 4"),
        (("--scheme", "x"), "--scheme x: expected one of: s8s8, u8s8, pow2"),
        (("--data", "data.npz", "--seed", "3"), "--seed: not with --data, which gives the samples"),
        (("--data", "data.npz"), "--data data.npz: no such file"),
        (("-o", "model.onnx"), "-o model.onnx: exists; --force replaces it"),
        (("-o", "-"), "-o -: standard output takes JSON only"),
        (("-o", "missing/int8.onnx"), "-o missing/int8.onnx: cannot be written"),
    ],
)
def test_the_command_line(
    words: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(MODEL, "model.onnx")
    content = Path("model.onnx").read_bytes()
    with pytest.raises(SystemExit) as ended:
        app.main(["quantize", "model.onnx", *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in folder.rglob("*")] == ["model.onnx"]
    assert Path("model.onnx").read_bytes() == content


def test_trial_b15_a_scale_by_channel_for_a_bias_of_groups(folder: Path) -> None:
    nodes = [
        node("ConvTranspose", "x w b", "t", name="first", group=2),
        node("Relu", "t", "r"),
        node("ConvTranspose", "r v b", "y", name="second", group=3),
    ]
    constants = {"w": random(4, 3, 2, 2), "b": random(6), "v": random(6, 2, 2, 2, seed=1)}
    model = make_model(nodes, {"x": (1, 4, 5, 5)}, ["y"], constants)
    found = r"first \(ConvTranspose\): per_channel=True is not for a bias of 2 groups\nsecond \(ConvTranspose\): .* 3 "
    check_refused(folder, found, model, per_channel=True)
    assert raptor.quantize(model).report.layers


@pytest.mark.parametrize("op_type", ["DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulNBits"])
def test_trial_a12_operators_of_floats_by_quantised_weights(folder: Path, op_type: str) -> None:
    """A refusal names the float model, which the command for quantising takes."""
    mine = onnx.helper.make_node(op_type, ["x", "w"], ["y"], name="mine", domain="com.microsoft")
    model = make_model([mine], {"x": (1, 4)}, {"y": 2}, {"w": np.zeros((4, 4), np.uint8)})
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    check_refused(folder, rf"already quantised: mine \({op_type}\); give the float model", model)
    if op_type != "MatMulNBits":  # its weights are float weights in blocks, and compile
        with pytest.raises(UserError, match=rf"mine \({op_type}\): not supported; compile the float model"):
            load(model)


def test_trial_a12_a_scale_that_is_known_at_run_time(folder: Path) -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z", name="dynamic"),
        node("MatMulInteger", "q w z", "p"),
        node("Cast", "p", "y", to=onnx.TensorProto.FLOAT),
    ]
    model = make_model(nodes, {"x": (1, 4)}, {"y": 2}, {"w": np.ones((4, 4), np.uint8)})
    with pytest.raises(UserError, match=r"dynamic .*: its scale is known only at run time; compile the float model"):
        load(model)
    check_refused(folder, "already quantised: dynamic .*; give the float model", model)
