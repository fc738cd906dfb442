"""Models without their weights, found in the bytes of the file."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from raptor.frontend.proto.strip_weights import strip_weights
from tests.tiny_models import make_model, node, random

W = random(8, 5, 3, 3)
LEAST = 1000


def model() -> ModelProto:
    """A large and a small weight."""
    return make_model([node("Conv", "x w b", "y")], {"x": (1, 5, 6, 6)}, ["y"], {"w": W, "b": random(8)})


def test_what_is_left_out_is_found_in_the_file():
    data = model().SerializeToString()
    outline, ranges = strip_weights(data, LEAST)
    assert len(outline) < len(data) - W.nbytes + 20
    assert ranges[1] is None, "b is small"
    assert ranges[0] is not None
    assert data[slice(*ranges[0])] == W.astype("<f4").tobytes()


def test_all_else_stays():
    proto = model()
    outline = ModelProto.FromString(strip_weights(proto.SerializeToString(), LEAST)[0])
    proto.graph.initializer[0].ClearField("raw_data")
    assert outline == proto


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int64])
def test_weights_of_other_types_stay(kind: type):
    proto = model()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(W.astype(kind), "w"))
    data = proto.SerializeToString()
    assert strip_weights(data, LEAST) == (data, [None, None])


def test_weights_in_another_field_or_file_stay():
    proto = model()
    large, small = proto.graph.initializer
    large.ClearField("raw_data")
    large.float_data.extend(W.reshape(-1).tolist())
    small.data_location = TensorProto.EXTERNAL
    small.raw_data = bytes(2 * LEAST)
    data = proto.SerializeToString()
    assert strip_weights(data, LEAST) == (data, [None, None])


def test_fields_and_parts_of_a_graph_may_come_in_any_order():
    """protobuf joins parts of one message, and keeps fields it does not know."""
    proto, late = model(), ModelProto()
    late.graph.initializer.add().CopyFrom(numpy_helper.from_array(W, "late"))
    unknown = bytes([0xF9, 0x7F, *range(8), 0xFD, 0x7F, *range(4)])  # field 2047, of 64 and of 32 bits
    data = late.SerializeToString() + unknown + proto.SerializeToString()
    outline, ranges = strip_weights(data, LEAST)
    assert [r and data[slice(*r)] == W.tobytes() for r in ranges] == [True, True, None]
    assert unknown in outline
    assert [t.name for t in ModelProto.FromString(outline).graph.initializer] == ["late", "w", "b"]


def test_truncated_anywhere_it_is_left_to_the_parser():
    data = model().SerializeToString()
    for length in (*range(1, 60), *range(len(data) - 200, len(data), 7)):
        outline, ranges = strip_weights(data[:length], LEAST)
        assert (outline, ranges) == (data[:length], []) or ModelProto.FromString(outline)


@pytest.mark.parametrize("bad", [b"\x3b", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 30, b"hello"])
def test_what_is_not_protobuf_is_left_to_the_parser(bad: bytes):
    assert strip_weights(bad, LEAST) == (bad, [])
