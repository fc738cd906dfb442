"""Inputs as the user fixes them: sizes of dimensions, constants; and inputs that the chip cannot have."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from raptor.common.errors import IncompleteError, UnsupportedError, UserError
from raptor.common.option_spelling import spell_as_flags
from raptor.frontend import load, survey
from raptor.frontend.proto.model_checks import is_settable
from raptor.options import ModelInputs
from tests.tiny_models import make_model, node, random

Dims = tuple[int | str | None, ...]


@pytest.fixture(autouse=True)
def as_typed() -> Iterator[None]:
    """Messages as the command line spells them."""
    with spell_as_flags():
        yield


def pair(first: Dims, second: Dims) -> ModelProto:
    """Builds a model with two inputs and two outputs."""
    nodes = [node("Relu", "a", "p", name="first"), node("Neg", "b", "q", name="second")]
    return make_model(nodes, {"a": first, "b": second}, {"p": len(first), "q": len(second)})


def shapes_of(model: ModelProto, **given: Any) -> dict[str, tuple[int, ...]]:
    graph = load(model, ModelInputs(**given)).graph
    return {name: graph.tensors[name].shape for name in graph.inputs}


def flagged(kind: int, dims: Dims) -> ModelProto:
    """x and an input `s` that nothing but its own type decides: it is cast and multiplied with x."""
    nodes = [node("Cast", "s", "f", to=TensorProto.FLOAT), node("Mul", "x f")]
    model = make_model(nodes, {"x": (2, 3)}, {"y": 2})
    model.graph.input.append(helper.make_tensor_value_info("s", kind, list(dims)))
    return model


# --- open dimensions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["height", "?", "", -1, 0, None])
def test_every_way_to_leave_a_size_open(size: int | str | None):
    model = pair((1, 3, size, 4), (1, 2))
    assert shapes_of(model, shapes={"a": (1, 3, 5, 4)})["a"] == (1, 3, 5, 4)
    with pytest.raises(IncompleteError) as error:
        load(model)
    wanted = ("--dim", "height=SIZE") if size == "height" else ("--shape", "a=1,3,H,4")
    assert error.value.options == wanted


def test_a_name_has_one_size_in_all_inputs():
    model = pair((1, "h", "w"), (2, "w", "h"))
    assert shapes_of(model, dims={"h": 3, "w": 4}) == {"a": (1, 3, 4), "b": (2, 4, 3)}
    assert shapes_of(model, dims={"h": 3}, shapes={"b": (2, 4, 3)}) == {"a": (1, 3, 4), "b": (2, 4, 3)}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dims": {"z": 3}}, r"--dim: no dimension 'z'; the inputs have h, w$"),
        ({"dims": {"h": 0}}, r"--dim h=0: sizes must be at least 1 and at most 268435456"),
        ({"dims": {"h": 10**30}}, r"--dim h=10+: sizes must be"),
        ({"shapes": {"a": (1, 3, 10**30)}}, r"--shape a=1,3,10+: sizes must be"),
        ({"dims": {"h": 3}, "shapes": {"a": (1, 5, 4)}}, r"--shape a=1,5,4: dimension 1 is 3 in the model \(1,h,w\)"),
        ({"constants": {"z": 3}}, r"--set: no input 'z'; the inputs are a, b$"),
        ({"constants": {"a": 3}, "shapes": {"a": (1, 5, 4)}}, r"--shape a: --set makes this input a constant"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], reason: str):
    with pytest.raises(UserError, match=reason):
        load(pair((1, "h", "w"), (2, "w")), ModelInputs(**given))


def test_a_model_without_names_has_no_dim():
    with pytest.raises(UserError, match=r"--dim: no dimension 'h'; those of the inputs have no names; use --shape"):
        load(pair((-1, 2), (None, 3)), ModelInputs(dims={"h": 1}))


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (("N", 3), ("N", 4), {"a": (1, 3), "b": (1, 4)}),
        ((-1, 3), (None, 4), {"a": (1, 3), "b": (1, 4)}),
        (("N", 3), ("N",), {"a": (1, 3), "b": (1,)}),
        (("N", 3), (2, "N", 4), {"a": (1, 3), "b": (2, 1, 4)}),
        (("N", 3), ("M", 4), {"a": (1, 3), "b": (1, 4)}),
    ],
)
def test_an_open_first_dimension_is_a_batch_of_one(first: Dims, second: Dims, wanted: Mapping[str, tuple[int, ...]]):
    model = load(pair(first, second))
    assert {n: model.graph.tensors[n].shape for n in model.graph.inputs} == wanted
    assert model.notes
    assert all("is taken as 1; for another: --" in note for note in model.notes)


def test_the_note_says_how_to_have_another_batch():
    model = pair(("N", 3), (-1, "h", 4, -1))
    notes = load(model, ModelInputs(shapes={"b": (1, 2, 4, 5)})).notes
    assert notes[1] == "dimension N, the first of input 'a', is taken as 1; for another: --dim N=SIZE"
    assert shapes_of(model, shapes={"b": (1, 2, 4, 5)}, dims={"N": 7})["a"] == (7, 3)
    with pytest.raises(IncompleteError) as error:
        load(model)
    assert error.value.options == ("--shape", "b=1,C,4,W")


@pytest.mark.parametrize(("first", "second"), [(("L",), (1, 2)), (("L", 3), ("N", "L")), (("L", "L"), (1, 2))])
def test_a_length_is_no_batch(first: Dims, second: Dims):
    with pytest.raises(IncompleteError, match="L has no size"):
        load(pair(first, second))


def test_channels_that_come_last():
    with pytest.raises(IncompleteError) as error:
        load(pair((None, None, None, 3), (1, 2)))
    assert error.value.options == ("--shape", "a=1,H,W,3")


def test_a_shape_covers_its_names_in_the_suggestion():
    with pytest.raises(IncompleteError) as error:
        load(pair((1, "h", None), (1, "h", "w")))
    assert error.value.options == ("--shape", "a=1,D1,D2", "--dim", "w=SIZE")


# --- constants -------------------------------------------------------------------------------------------------------

GOOD = [
    (TensorProto.INT64, (), "16000", 16000),
    (TensorProto.INT64, (), 16000, 16000),
    (TensorProto.INT64, (), np.int32(5), 5),
    (TensorProto.INT32, (1,), "-3", [-3]),
    (TensorProto.UINT8, (), 255, 255),
    (TensorProto.UINT64, (), 2**64 - 1, 2**64 - 1),
    (TensorProto.BOOL, (), "true", True),
    (TensorProto.BOOL, (), "False", False),
    (TensorProto.BOOL, (1,), "1", [True]),
    (TensorProto.FLOAT, (), "1.5", 1.5),
    (TensorProto.FLOAT, (), 2, 2.0),
    (TensorProto.FLOAT16, (), "0.5", 0.5),
    (TensorProto.DOUBLE, (3,), "1.5, 2,1e-3", [1.5, 2.0, 1e-3]),
    (TensorProto.FLOAT, ("n",), "1,2,3", [1.0, 2.0, 3.0]),
    (TensorProto.FLOAT, (2, 3), "1,2,3,4,5,6", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    (TensorProto.FLOAT, (-1, 3), "1,2,3", [[1.0, 2.0, 3.0]]),
    (TensorProto.FLOAT, (2, 3), [[1, 2, 3], [4, 5, 6]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
]


@pytest.mark.parametrize(("kind", "dims", "given", "wanted"), GOOD)
def test_a_constant_in_the_type_and_shape_of_its_input(kind: int, dims: Dims, given: Any, wanted: Any):
    model = load(flagged(kind, dims), ModelInputs(constants={"s": given}))
    assert model.graph.inputs == ("x",)
    found = model.constants["s"]
    assert found.dtype == helper.tensor_dtype_to_np_dtype(kind)
    assert found.tolist() == wanted
    assert model.notes[-1].startswith("input 's' is the constant ")


BAD = [
    (TensorProto.INT64, (), "1.5", r"--set s=1\.5: the input is int64, and this is not"),
    (TensorProto.INT64, (), 1.5, r"--set s=1\.5: the input is int64, and this is not"),
    (TensorProto.INT64, (), True, r"--set s=True: the input is int64, and this is not"),
    (TensorProto.INT64, (), "9" * 5000, r"--set s=9+: the input is int64, and this is not$"),
    (TensorProto.INT64, (), 2**63, r"--set s=9223372036854775808: the input is int64"),
    (TensorProto.INT8, (), "128", r"--set s=128: the input is int8"),
    (TensorProto.UINT8, (), -1, r"--set s=-1: the input is uint8"),
    (TensorProto.BOOL, (), "yes", r"--set s=yes: the input is bool"),
    (TensorProto.BOOL, (), 2, r"--set s=2: the input is bool"),
    (TensorProto.FLOAT, (), "", r"--set s=: the input is float"),
    (TensorProto.FLOAT, (), "nan", r"--set s=nan: the input is float"),
    (TensorProto.FLOAT, (), "1e39", r"--set s=1e\+39: the input is float"),
    (TensorProto.FLOAT, (), float("inf"), r"--set s=inf: the input is float"),
    (TensorProto.FLOAT, (), [], r"--set s=nothing: the input is float"),
    (TensorProto.FLOAT, (), object(), r"the input is float"),
    (TensorProto.FLOAT, (), None, r"the input is float"),
    (TensorProto.FLOAT, (2,), [[1, 2], [3]], r"--set s: expected a number, or numbers in rows of one length"),
    (TensorProto.FLOAT, (), "1,2", r"--set s: 2 values, but the input is a scalar"),
    (TensorProto.FLOAT, (2, 3), "1,2,3", r"--set s: 3 values, but the input is of 2,3"),
    (TensorProto.FLOAT, ("a", "b", "c"), "1,2,3", r"--set s: 3 values, but the input is of a,b,c"),
    (TensorProto.FLOAT, (2, 3), [[1, 2], [3, 4]], r"--set s: dimension 1 is 3 in the model \(2,3\)"),
    (TensorProto.FLOAT, (2,), [[1, 2]], r"--set s: the model has 1 dimensions: 2"),
    (TensorProto.FLOAT, ("n",), ",".join("1" * 1025), r"--set s: 1025 values; at most 1024 can be set"),
    (TensorProto.FLOAT, ("n",), np.zeros(2000), r"--set s: 2000 values; at most 1024 can be set"),
    (TensorProto.COMPLEX64, (), "1", r"--set s: the input is complex64, which has no constants"),
]


@pytest.mark.parametrize(("kind", "dims", "given", "reason"), BAD)
def test_a_value_that_is_none_of_the_input(kind: int, dims: Dims, given: Any, reason: str):
    model = flagged(kind, dims)
    if kind == TensorProto.COMPLEX64:  # which no Cast takes
        del model.graph.node[:]
        model.graph.node.append(node("Relu", "x"))
    with pytest.raises(UserError, match=reason):
        load(model, ModelInputs(constants={"s": given}))


def test_the_shape_of_a_constant_tells_the_size_of_a_name():
    nodes = [node("Mul", "x s")]
    model = make_model(nodes, {"x": (2, "n"), "s": ("n",)}, {"y": 2})
    assert shapes_of(model, constants={"s": "1,2,3"}) == {"x": (2, 3)}
    with pytest.raises(UserError, match=r"--set s: 3 values, but the input is of 4"):
        load(model, ModelInputs(constants={"s": "1,2,3"}, dims={"n": 4}))


def test_a_model_whose_inputs_are_all_constants():
    model = load(make_model([node("Relu", "x")], {"x": (2,)}, {"y": 1}), ModelInputs(constants={"x": "-1,2"}))
    assert model.graph.inputs == ()


def test_loading_leaves_the_model_as_it_is():
    model = flagged(TensorProto.INT64, ())
    before = model.SerializeToString()
    assert load(model, ModelInputs(constants={"s": 1})).onnx_bytes == before
    assert model.SerializeToString() == before


# --- inputs that the chip cannot have --------------------------------------------------------------------------------


def tokens(dims: Dims = (1, 7)) -> ModelProto:
    """An embedding of token ids, and a product."""
    constants = {"table": random(9, 4), "w": random(4, 3)}
    nodes = [
        node("Cast", "ids", "long", to=TensorProto.INT64, name="cast"),
        node("Gather", "table long", "e", name="embed"),
        node("MatMul", "e w"),
    ]
    model = make_model(nodes, {}, {"y": len(dims) + 1}, constants)
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT32, list(dims)))
    return model


def test_token_ids():
    found = survey(tokens())
    assert found.unsupported == ()
    assert found.graph.tensors["y"].shape == (1, 7, 3)
    assert found.parameters == 9 * 4 + 4 * 3
    coding = load(tokens()).graph.tensors["ids"].coding
    assert coding is not None
    assert (coding.dtype, coding.low, coding.high) == ("int32", 0, 8)


def test_an_input_that_must_be_a_constant():
    model = make_model([node("ScatterND", "x i x", "y", name="put")], {"x": (65, 3)}, {"y": 2})
    model.graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, [65, 1]))
    with pytest.raises(UnsupportedError, match=r"put \(ScatterND\): 'i' must be a constant \(--set i=VALUE\)$"):
        load(model)
    constants = {"i": np.arange(65)[:, None]}
    assert load(model, ModelInputs(constants=constants)).graph.tensors["y"].shape == (65, 3)


def test_all_inputs_that_cannot_be_are_told_at_once():
    model = flagged(TensorProto.COMPLEX64, (2, 3))
    model.graph.input.append(helper.make_tensor_value_info("u", TensorProto.COMPLEX128, [2]))
    with pytest.raises(UserError) as error:
        load(model)
    assert str(error.value).splitlines() == [
        "input 's' is complex64, must be of numbers",
        "input 'u' is complex128, must be of numbers",
    ]


def test_what_is_missing_is_said_in_python_too() -> None:
    error = IncompleteError("open", ["--dim", "H=SIZE", "--dim", "W=SIZE", "--shape", "x=1,C", "--set", "sr=VALUE"])
    assert error.keywords == "dims={'H': SIZE, 'W': SIZE}, shapes={'x': (1,C)}, constants={'sr': VALUE}"


def test_an_absent_output_is_no_absent_parameter() -> None:
    """The second layer has no lengths of sequences, and the first no sequence of results: both names are empty."""
    layers = [
        node("Cast", "ids", "x", to=TensorProto.FLOAT),
        node("RNN", "x w r", "- h", hidden_size=1),
        node("RNN", "z w r - - h", "- y", hidden_size=1),
    ]
    for layer in layers:
        layer.output[:] = ["" if o == "-" else o for o in layer.output]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [3])
    graph = helper.make_graph(layers, "ids", [ids], [])
    assert not is_settable(helper.make_model(graph), ids)


def ids_of(dims: Dims, *nodes: Any, **constants: Any) -> ModelProto:
    """Ids `phs` that choose rows of a table, a layer of these, and what else is given."""
    table = {"t": random(30, 4), "w": random(4, 6)}
    made = [node("Gather", "t phs", "e"), node("MatMul", "e w", "m"), *nodes]
    outputs = {"y": 2} if nodes else {"m": 2}
    model = make_model(made, {"phs": dims}, outputs, {**table, **constants})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model


def test_trial_a13_a_vector_of_ids_is_data_whatever_its_rows_decide():
    """A number of frames is computed from the rows: the ids are no flag for that."""
    nodes = [
        node("ReduceMean", "m", "mean", axes=[0, 1], keepdims=0),
        node("Cast", "mean", "frames", to=TensorProto.INT64),
        node("TopK", "m frames", "y at"),
    ]
    model = ids_of(("unk__601",), *nodes)
    with pytest.raises(IncompleteError) as raised:
        load(model)
    assert raised.value.options == ("--dim", "unk__601=SIZE")
    with pytest.raises(UnsupportedError, match="my_topk"):
        load(model, ModelInputs(dims={"unk__601": 5}))
    assert not is_settable(model, model.graph.input[0])


def test_trial_a13_ids_of_a_size_that_is_given():
    assert shapes_of(ids_of(("N0",)), dims={"N0": 5}) == {"phs": (5,)}


def test_trial_a13_a_layer_makes_data_of_what_it_reads():
    """A mask of ids is cast, multiplied by weights, and only then decides something."""
    nodes = [
        node("Cast", "s", "f", to=TensorProto.FLOAT),
        node("MatMul", "f v", "score"),
        node("Cast", "score", "size", to=TensorProto.INT64),
        node("Expand", "one size"),
    ]
    model = make_model(nodes, {"s": ("N",)}, {"y": 2}, {"v": random(3, 2), "one": np.ones((1, 1), np.float32)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    assert not is_settable(model, model.graph.input[0])


def test_trial_a13_a_length_is_still_a_parameter():
    """The length of an LSTM, which is a layer, and of an Expand behind a maximum."""
    lstm = make_model(
        [node("LSTM", "x w r - n", hidden_size=2)],
        {"x": (3, 1, 4), "n": (1,)},
        {"y": 4},
        {"w": random(1, 8, 4), "r": random(1, 8, 2)},
    )
    expand = make_model(
        [node("ReduceMax", "n", "most", keepdims=1), node("Expand", "x most")],
        {"x": (1,), "n": ("B",)},
        {"y": 1},
    )
    for model in (lstm, expand):
        model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT32
        assert is_settable(model, model.graph.input[1])
