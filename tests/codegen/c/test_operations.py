"""Each class of operations in C, bit for bit as the validator's engine: floats of all widths, integers, mixed."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import raptor
from raptor.codegen.c.form_code import FLOAT_FUNCTIONS, INTEGER_FUNCTIONS, WRITERS
from raptor.common.errors import CapacityError
from raptor.pim import PimProgram
from raptor.spatial.operations import Vector
from tests.codegen.c.programs import assert_equal, build, needs_compiler
from tests.graphs import chips, models
from tests.pipeline import Recorder, conv_model, thesis_model
from tests.quantised_models import quantise
from tests.tiny_models import make_model, node, random, single

pytestmark = needs_compiler

SMALL = {"xbar": 8, "xbars_per_core": 8, "cores": 64}


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPTOR_CC", "cc -O1")


def elementwise() -> ModelProto:
    """A chain of all element-wise functions, on numbers above 0."""
    nodes = [node("Exp", "x", "a"), node("Log", "a", "b", name="log"), node("Sqrt", "a", "c")]
    nodes += [node("Tanh", "b", "d"), node("Sigmoid", "b", "e"), node("Erf", "b", "f"), node("Div", "d c", "g")]
    nodes += [node("Mul", "e f", "h"), node("Sub", "g h", "i"), node("Max", "i b", "j"), node("Relu", "j", "k")]
    nodes += [node("Greater", "k f", "l"), node("Where", "l k d", "y")]
    return make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"])


def embedding() -> ModelProto:
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3])
    rows = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 5])
    table = numpy_helper.from_array(random(7, 5), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"], name="rows")], "g", [ids], [rows], [table]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def attention() -> ModelProto:
    nodes = [node("MatMul", "q k", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p v", "y", name="out")]
    return make_model(nodes, {"q": (1, 4, 6), "k": (1, 6, 5), "v": (1, 5, 6)}, {"y": 3})


def depthwise(stride: int = 1) -> ModelProto:
    layer = node("Conv", "x w b", group=6, pads=[1, 1, 1, 1], strides=[stride, stride])
    return make_model([layer], {"x": (1, 6, 7, 7)}, ["y"], {"w": random(6, 1, 3, 3), "b": random(6)})


def mean_of_channels() -> ModelProto:
    return make_model([node("ReduceMean", "x", axes=[-1])], {"x": (1, 6, 16)}, {"y": 3})


def concatenated() -> ModelProto:
    """Channels of two tensors that begin in the middle of a tile, and a layer that reads them."""
    nodes = [node("Relu", "x", "a"), node("Concat", "a z", "b", axis=1), node("Conv", "b w", "y")]
    return make_model(nodes, {"x": (1, 3, 4, 4), "z": (1, 5, 4, 4)}, ["y"], {"w": random(4, 8, 1, 1)})


FLOATS: Mapping[str, tuple[ModelProto, dict[str, Any]]] = {
    "elementwise": (elementwise(), {}),
    "attention": (attention(), {}),
    "depthwise": (depthwise(), {}),
    "depthwise, strided": (depthwise(2), {"mapping": "raptor"}),
    "long sum": (single("GlobalAveragePool", (1, 3, 16, 16)), {"mapping": "raptor"}),
    "maximum": (single("MaxPool", (1, 3, 9, 9), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), {}),
    "concatenated": (concatenated(), {"mapping": "raptor"}),
    "mean of channels": (mean_of_channels(), {}),
    "kernel unfolding": (thesis_model(4, 8), {"xbar": 3, "xbars_per_core": 5, "cores": 16, "mapping": "raptor"}),
    "by pixel": (thesis_model(4, 8), {"xbar": 4, "xbars_per_core": 60, "cores": 4, "mapping": "pixelwise"}),
    "overlapping blocks": (
        conv_model((1, 2, 6, 40), 3, pads=(1, 1, 1, 1)),
        {"xbar": 8, "xbars_per_core": 64, "cores": 8},
    ),
    "16 bits": (conv_model((1, 5, 6, 6), 7), {**SMALL, "bits": 16, "cell_bits": 8}),
    "32 bits": (conv_model((1, 5, 6, 6), 7), {**SMALL, "bits": 32, "cell_bits": 32}),
    "resident constants": (build("mlp3"), {"resident_constants": True}),
    "transformer": (build("bert"), {"resident_constants": True}),
}


def programs(model: ModelProto, **options: Any) -> PimProgram:
    driver = Recorder()
    raptor.compile(model, driver=driver, **options)
    return driver.results["allocate"]


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    model, options = FLOATS[name]
    assert_equal(model, **options)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_rows_of_a_table(bits: int) -> None:
    assert_equal(embedding(), {"ids": np.array([[6, 0, 3], [2, 2, 5]])}, bits=bits, cell_bits=8)


def integer_model(folder: Path, **more: Any) -> ModelProto:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], name="first"),
        node("Relu", "a", "b"),
        node("Conv", "b v", "c", group=6, name="depthwise"),
        node("Sigmoid", "c", "d"),
        node("Add", "c d", "e"),
        node("MaxPool", "e", "f", kernel_shape=[2, 2]),
        node("GlobalAveragePool", "f", "y"),
    ]
    float_model = make_model(
        nodes, {"x": (1, 3, 8, 8)}, ["y"], {"w": random(6, 3, 3, 3), "v": random(6, 1, 3, 3, seed=1)}
    )
    return quantise(float_model, folder, **more)


@pytest.mark.parametrize("requant", ["exact", "short", "instruction"])
@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_integers(requant: str, mapping: str, tmp_path: Path) -> None:
    assert_equal(integer_model(tmp_path), requant=requant, mapping=mapping)


@pytest.mark.parametrize("more", [{"activations": "QUInt8"}, {"per_channel": True}, {"form": "QOperator"}])
def test_integers_of_other_kinds(more: dict[str, Any], tmp_path: Path) -> None:
    assert_equal(integer_model(tmp_path, **more), **SMALL)


def test_mixed(tmp_path: Path) -> None:
    """Sections of float32 between integers: conversions, and floats in a memory of bytes."""
    model = quantise(build("bert"), tmp_path)
    program = raptor.compile(model)
    assert program.artifacts is not None
    assert program.artifacts.numbers == "mixed"
    assert_equal(model)
    assert raptor.compile(model, backend="c").validate(samples=2).verdict == "pass"


def test_every_class_and_function_is_tried(tmp_path: Path) -> None:
    """A writer that no test runs could be wrong: the forms of the models above have all of them."""
    quantised = quantise(build("bert"), tmp_path)
    tried = [programs(model, **options) for model, options in FLOATS.values()]
    tried += [programs(embedding()), programs(quantised), programs(integer_model(tmp_path))]
    tried += [programs(integer_model(tmp_path), requant="instruction")]
    forms = [f.operation for p in tried for core in p.cores.values() for f in core.steps.forms.forms]
    assert {kind.__name__ for kind in WRITERS} - {type(operation).__name__ for operation in forms} == set()
    functions = {operation.function for operation in forms if isinstance(operation, Vector)}
    assert {*FLOAT_FUNCTIONS, *INTEGER_FUNCTIONS, "float", "round"} - functions == {"sum"}  # of a pool


@given(model=models(), chip=chips(), mapping=st.sampled_from(["rows", "raptor"]))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_graphs(model: ModelProto, chip: dict[str, Any], mapping: str) -> None:
    with suppress(CapacityError):
        assert_equal(model, cores=400, mapping=mapping, **chip)


def test_a_pass_of_the_user_changes_the_c_program(tmp_path: Path) -> None:
    """It gets the program before it becomes C, as it does before it becomes streams."""
    seen: list[PimProgram] = []

    def look(program: PimProgram) -> PimProgram:
        seen.append(program)
        return program

    options: dict[str, Any] = {"xbar": 3, "xbars_per_core": 5, "cores": 16, "mapping": "raptor"}
    program = raptor.compile(thesis_model(4, 8), backend="c", passes={"allocate": look}, **options)
    assert len(seen) == 1
    assert "allocate" in " ".join(program.report.warnings)
