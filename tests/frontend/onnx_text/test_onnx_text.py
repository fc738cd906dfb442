"""ONNX models as MLIR text of the dialect `onnx`: the same model after the detour, also through mlir-opt."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models
import raptor
from raptor.common.errors import UserError
from raptor.compiler.pass_driver import Driver
from raptor.frontend.loading import load
from raptor.frontend.onnx_text.onnx_reader import read_onnx_text
from raptor.frontend.onnx_text.onnx_writer import write_onnx
from tests.mlir.mutations import lookup_model, mutate, pooled_model
from tests.mlir.test_round_trip import MLIR_OPT, mlir_opt
from tests.models.test_models import small_options
from tests.pipeline import thesis_model
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node
from tests.tiny_models import random as values


def text_of(model: onnx.ModelProto) -> str:
    text = write_onnx(model.SerializeToString(), "m")
    assert text is not None
    return text


def read(text: str, folder: Path) -> onnx.ModelProto:
    (folder / "m.mlir").write_text(text)
    return read_onnx_text(folder / "m.mlir")


def content(model: onnx.ModelProto) -> dict[str, Any]:
    """Returns all that a model computes; constants by name, since their order says nothing."""

    def attribute(each: onnx.AttributeProto) -> Any:
        value = onnx.helper.get_attribute_value(each)
        if each.type == onnx.AttributeProto.TENSOR:
            return value.data_type, tuple(value.dims), numpy_helper.to_array(value).tobytes()
        return f"{value!r}"

    graph = model.graph
    return {
        "versions": (model.ir_version, {each.domain: each.version for each in model.opset_import}),
        "inputs": [each.SerializeToString() for each in graph.input],
        "outputs": [each.SerializeToString() for each in graph.output],
        "constants": {t.name: (t.data_type, (*t.dims,), numpy_helper.to_array(t).tobytes()) for t in graph.initializer},
        "nodes": [
            (n.name, n.op_type, n.domain, (*n.input,), (*n.output,), {a.name: attribute(a) for a in n.attribute})
            for n in graph.node
        ],
    }


def typed_model() -> onnx.ModelProto:
    """Constants of many types, absent operands, a Cast, an operator of another domain, floats that are not finite."""
    nodes = [
        node("Clip", "x  high", "a", name='clip "x"'),
        node("Cast", "a", "b", name="cast", to=onnx.TensorProto.FLOAT16),
        node("Cast", "b", "c", to=onnx.TensorProto.FLOAT),
        node("Constant", "", "k", name="constant", value=numpy_helper.from_array(values(3), "other")),
        node("Mul", "c k", "d"),
        onnx.helper.make_node("Gelu", ["d"], ["y"], name="gelu", domain="com.microsoft"),
    ]
    nodes[3].ClearField("input")
    constants = {"high": np.float32(np.inf), "unused": np.array([True, False]), "ids": np.arange(40, dtype=np.uint8)}
    model = make_model(nodes, {"x": (1, 3)}, ["y"], constants | {"none": np.zeros((0, 2), np.int64)})
    model.opset_import.add(domain="com.microsoft", version=1)
    model.graph.initializer.append(onnx.helper.make_tensor("numbers", onnx.TensorProto.FLOAT, [2], [0.1, -0.0]))
    return model


SMALL = {
    "thesis": lambda folder: thesis_model(3, 4),
    "integers": lambda folder: quantise(thesis_model(3, 4), folder),
    "pooled": lambda folder: pooled_model(),
    "lookup": lambda folder: lookup_model(),
    "typed": lambda folder: typed_model(),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_models(name: str, tmp_path: Path):
    model = SMALL[name](tmp_path)
    text = text_of(model)
    wanted = content(model)
    assert content(read(text, tmp_path)) == wanted
    if MLIR_OPT is not None:
        printed = mlir_opt(text, "--mlir-print-op-generic")
        assert content(read(printed.decode(), tmp_path)) == wanted
        (tmp_path / "m.mlirbc").write_bytes(mlir_opt(text, "--emit-bytecode"))
        printed = mlir_opt("", "--mlir-print-op-generic", str(tmp_path / "m.mlirbc"))
        assert content(read(printed.decode(), tmp_path)) == wanted


@pytest.mark.parametrize("name", models.MODELS)
def test_models_of_the_zoo(name: str, tmp_path: Path):
    model = models.build(name, seed=0, **small_options(name))
    model.graph.name = "m"
    back = read(text_of(model), tmp_path)
    assert content(back) == content(model)
    assert str(load(back).graph) == str(load(model).graph)


def test_a_dump_is_compiled_to_the_same_streams(tmp_path: Path):
    model = pooled_model()
    program = raptor.compile(model, driver=Driver(dump=tmp_path / "ir", dump_format="mlir"), xbar=8, cores=8)
    again = raptor.compile(tmp_path / "ir" / "00-load.mlir", xbar=8, cores=8)
    streams = [
        {path.name: path.read_bytes() for path in each.save(tmp_path / f"{k}").glob("core_*")}
        for k, each in enumerate((program, again))
    ]
    assert len(streams[0]) > 1
    assert streams[0] == streams[1]
    assert again.validate().passed


FOREIGN = """
"builtin.module"() ({
  "func.func"() <{function_type = (tensor<1x3xf32>) -> tensor<1x2xf32>, sym_name = "main_graph"}> ({
  ^bb0(%arg0: tensor<1x3xf32>):
    %0 = "onnx.Constant"() {value = dense<[[1.0, 2.5e+00], [-3.0, 0.5], [0x3F800000, 0.25]]> : tensor<3x2xf32>}
         : () -> tensor<3x2xf32>
    %1 = "onnx.Constant"() {value = dense<5.000000e-01> : tensor<2xf32>} : () -> tensor<2xf32>
    %2 = "onnx.Gemm"(%arg0, %0, %1) {alpha = 1.0 : f32, transB = 0 : si64}
         : (tensor<1x3xf32>, tensor<3x2xf32>, tensor<2xf32>) -> tensor<1x2xf32>
    %3 = "onnx.NoValue"() {value} : () -> none
    %4 = "onnx.Clip"(%2, %3, %3) {onnx_node_name = "clip"} : (tensor<1x2xf32>, none, none) -> tensor<1x2xf32>
    "onnx.Return"(%4) : (tensor<1x2xf32>) -> ()
  }) : () -> ()
  "onnx.EntryPoint"() {func = @main_graph} : () -> ()
}) : () -> ()
"""
"""A model as onnx-mlir prints it: constants as lists, no names of results."""


def test_a_text_of_onnx_mlir(tmp_path: Path):
    (tmp_path / "m.mlir").write_text(FOREIGN)
    program = raptor.compile(tmp_path / "m.mlir", cores=2, xbar=8)
    assert program.validate().passed
    (found,) = program.run({"input0": np.array([[1, 2, 3]], np.float32)}).values()
    assert np.allclose(found, [[1 - 6 + 3 + 0.5, 2.5 + 1 + 0.75 + 0.5]])
    assert raptor.inspect(tmp_path / "m.mlir").model == "m"


def test_sizes_that_are_not_known_get_names(tmp_path: Path):
    (tmp_path / "m.mlir").write_text(FOREIGN.replace("1x3xf32", "?x3xf32").replace("1x2xf32", "?x2xf32"))
    program = raptor.compile(tmp_path / "m.mlir", dims={"input0_0": 2}, cores=2, xbar=8)
    assert program.validate().passed


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("dense<5.000000e-01> : tensor<2xf32>}", "dense<[1.0]> : tensor<2xf32>}", "line 7: .*values do not fill"),
        ("dense<5.000000e-01> : tensor<2xf32>}", "dense<5.0> : tensor<2xf8>}", "line 7: .*f8 is no type"),
        ("dense<5.000000e-01> : tensor<2xf32>}", "dense_resource<w> : tensor<2xf32>}", "line 7: .*no values of .* w"),
        ("dense<5.000000e-01> : tensor<2xf32>}", 'dense<"0x0"> : tensor<2xf32>}', "line 7: .*hexadecimal"),
        ("dense<5.000000e-01> : tensor<2xf32>}", "dense<1.0> : tensor<99999999999xf32>}", "line 7: .*do not fill"),
        ('"onnx.Gemm"(%arg0, %0, %1)', '"onnx.Gemm"(%arg0, %9, %1)', "line 8: %9 is used before it is defined"),
        ('"onnx.Gemm"', '"tosa.matmul"', "line 8: tosa.matmul: expected an operation of the dialect onnx"),
        ('"onnx.Gemm"', '"onnx.Gemmm"', "Gemmm"),
        ("alpha = 1.0 : f32", "alpha = {a = 1.0 : f32}", "line 8: onnx.Gemm: alpha is no attribute"),
        ('    "onnx.Return"(%4) : (tensor<1x2xf32>) -> ()\n', "", "line 3: .*does not end with onnx.Return"),
        ("^bb0(%arg0: tensor<1x3xf32>)", "^bb0(%arg0: memref<1x3xf32>)", "line 3: .*memref<1x3xf32> is no tensor"),
        ("%3 = ", "%2 = ", None),
        ("%4 = ", "%2 = ", "line 11: %2 is defined twice"),
        ('"builtin.module"() ({', '"builtin.module"() ({\n"x.y"() : () -> ()', "line 3: x.y: expected func.func"),
    ],
)
def test_wrong_texts(old: str, new: str, says: str | None, tmp_path: Path):
    assert old in FOREIGN
    (tmp_path / "m.mlir").write_text(FOREIGN.replace(old, new, 1))
    with pytest.raises(UserError, match=f"m.mlir: {says}" if says and says.startswith("line") else says or "%3"):
        raptor.compile(tmp_path / "m.mlir", cores=2, xbar=8)


def test_mutated_text(tmp_path: Path):
    rng, found = random.Random(1), Counter[str]()
    for text in (FOREIGN, text_of(typed_model())):
        for _ in range(150):
            try:
                load(read(mutate(text, rng), tmp_path))
            except UserError as e:
                found["line" if re.search(r"m\.mlir: line \d+: ", str(e)) else "later"] += 1
            else:
                found["right"] += 1
    assert min(found["line"], found["right"]) > 20


def test_a_model_with_branches_has_no_text(tmp_path: Path):
    branch = onnx.helper.make_graph(
        [node("Relu", "x", "b")], "b", [], [onnx.helper.make_tensor_value_info("b", 1, [1, 3])]
    )
    chosen = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = make_model([chosen], {"x": (1, 3)}, ["y"], {"c": np.array(True)})
    assert write_onnx(model.SerializeToString(), "m") is None
    raptor.compile(model, driver=Driver(dump=tmp_path / "ir", dump_format="mlir"), cores=2)
    assert (tmp_path / "ir" / "00-load.txt").is_file()
