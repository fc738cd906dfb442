"""Needs of a language model, as `raptor inspect` tells them."""

import pytest
from onnx import TensorProto, helper

import raptor
from raptor.compiler.analysis.inspection import format_totals, inspect
from tests import decoder_models as decoders
from tests import fused_decoders
from tests.frontend.contributed.test_contributed_operators import quantised


def test_a_decoder_is_inspected_as_a_step() -> None:
    """Its tables have 64 positions, so the inspected caches have 64 rows."""
    found = inspect(decoders.grouped_decoder())
    assert found.decoder is not None
    assert found.decoder.capacity == 64
    assert found.decoder.states == tuple(f"past_key_values.{n}.{kind}" for n in range(2) for kind in ("key", "value"))
    assert (found.decoder.token_bytes, found.decoder.cache_bytes) == (4 * 2 * 16, 64 * 4 * 2 * 16)
    assert found.decoder.derived == ("attention_mask",)
    assert found.inputs == {"input_ids": (1, 1), "position": (1,)}
    assert found.outputs == {"logits": (1, 1, 20)}
    assert {o.op_type: (o.nodes, o.status) for o in found.operators}["GroupQueryAttention"] == (2, "supported")
    made = raptor.compile(decoders.grouped_decoder(), states="auto", capacity=64, cores=32)
    assert {layer.node for layer in found.layers if layer.xbars} >= {x.node for x in made.report.layers if x.xbars}


def test_the_width_of_the_chip_counts() -> None:
    narrow, wide = (inspect(decoders.plain_decoder(positions=300), bits=bits).decoder for bits in (8, 16))
    assert narrow is not None
    assert wide is not None
    assert (narrow.capacity, wide.capacity) == (256, 256)
    assert wide.cache_bytes == 2 * narrow.cache_bytes


def test_stacked_caches_have_the_names_of_the_model() -> None:
    found = inspect(fused_decoders.stacked_decoder("Gather"))
    assert found.decoder is not None
    assert found.decoder.states == ("past_0", "past_1")
    lines = dict(format_totals(found))
    assert lines["caches"] == "2, 64 bytes a token, 16,384 bytes a session"
    assert lines["decoder"].startswith("a step with caches of 256 tokens: ")


@pytest.mark.parametrize(("block", "scales"), [(16, 8), (32, 4), (128, 1), (256, 1)])
def test_blocks_beside_the_rows_of_crossbars(block: int, scales: int) -> None:
    found = inspect(quantised(4, block, 256, "absent"))
    (blocks,) = found.blocks
    assert (blocks.bits, blocks.size, blocks.nodes, blocks.scales_per_xbar) == (4, block, 1, scales)
    assert found.parameters == 256 * 24 + 24
    told = dict(format_totals(found))["4-bit weights"]
    assert told == f"1 layers, blocks of {block} inputs: {scales} scales in 128 rows of a crossbar"


def test_other_models_are_no_decoders() -> None:
    proto = decoders.plain_decoder()
    assert inspect(proto, dims={"batch": 1, "sequence": 1, "past": 3, "past + sequence": 4}).decoder is None
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "open", [value], [], [])
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "rows", 4]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(raptor.UserError, match="rows"):
        inspect(model)
