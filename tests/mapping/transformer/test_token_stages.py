"""Models of tokens and images: where other layers lie between attentions, these may have cores of their own."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.programs.block_models import BlockBuilder
from benchmarks.programs.block_models import build_model as built
from benchmarks.programs.slow_models import build_model as model_of_attention
from raptor.frontend import load
from raptor.graph.ir import Dot, Filter, Graph
from raptor.mapping.knobs import DEFAULT_KNOBS
from raptor.mapping.transformer.token_cores import TokenStages, group_stages
from raptor.mapping.transformer.token_stages import find_stages
from raptor.target import arch
from raptor.target.arch import Target
from raptor.target.timing import vector_ns
from tests.pipeline import check, streamed

Build = Callable[[BlockBuilder], str]
LAYERS = 3


def attended(b: BlockBuilder, x: str) -> str:
    """Adds an attention of 36 tokens of 8 channels."""
    q, k, v = (b.linear(x, 8, 8) for _ in range(3))
    s = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])), axis=-1)
    return b.linear(b.op("MatMul", s, v), 8, 8)


def hybrid(b: BlockBuilder) -> str:
    """Attentions over the tokens of an image: two one after another, and behind convolutions a third one."""
    x = b.conv("x", 8, 8)
    for i in range(LAYERS):
        tokens = b.op("Transpose", b.op("Reshape", x, b.ints(1, 8, 36)), perm=[0, 2, 1])
        tokens = attended(b, attended(b, tokens) if i == 0 else tokens)
        x = b.op("Reshape", b.op("Transpose", tokens, perm=[0, 2, 1]), b.ints(1, 8, 6, 6))
        x = b.conv(b.op("Relu", b.conv(x, 8, 8)), 8, 8)
    return x


def over_pixels(b: BlockBuilder, x: str) -> str:
    """Adds an attention of the pixels of an image on themselves."""
    q = b.op("Reshape", x, b.ints(1, 8, 36))
    s = b.op("Softmax", b.op("MatMul", b.op("Transpose", q, perm=[0, 2, 1]), q), axis=-1)
    o = b.op("MatMul", s, b.op("Transpose", q, perm=[0, 2, 1]))
    return b.op("Reshape", b.op("Transpose", o, perm=[0, 2, 1]), b.ints(1, 8, 6, 6))


def between(b: BlockBuilder) -> str:
    """Attentions over the pixels of an image, with nothing but convolutions between."""
    x = b.conv("x", 8, 8)
    for _ in range(LAYERS):
        x = b.conv(over_pixels(b, b.op("Relu", b.conv(x, 8, 8))), 8, 8)
    return x


def beside(b: BlockBuilder) -> str:
    """Two attentions that do not depend on each other."""
    return b.op("Add", *(over_pixels(b, b.op("Relu", b.conv("x", 8, 8))) for _ in range(2)))


def chip(cores: int = 40) -> Target:
    return arch.load(cores=cores, xbar=32)


def laid(build: Build) -> Graph:
    return streamed(load(built(build, (1, 8, 6, 6))).graph)


def stages_of(build: Build) -> TokenStages:
    found = find_stages(laid(build), chip(), {})
    assert found is not None
    return found


def test_convolutions_cut_a_chain():
    """The projection of an attention is in the chain before them, and the queries of the next in the one behind."""
    stages = stages_of(hybrid)
    assert [len(together) for together in stages.products] == [1, 1, 0, 1, 0, 1]
    assert [len(chain.layers) for chain in stages.chains] == [3, 4, 1, 3, 1, 3, 1]
    assert {*stages.breaks} == {2, 4}
    assert all(len(keys) == 2 for keys in stages.breaks.values())


def test_attentions_with_convolutions_between_are_not_one_beside_another():
    stages = stages_of(between)
    assert [len(together) for together in stages.products] == [1] * LAYERS
    assert {*stages.breaks} == {*range(1, LAYERS)}


def test_attentions_that_do_not_depend_on_each_other_are():
    stages = stages_of(beside)
    assert [len(together) for together in stages.products] == [2]
    assert not stages.breaks


def test_functions_behind_a_product_are_work_of_its_cores():
    """Work behind a rearrangement counts, too, but not behind the next layer. An absolute value is two functions."""
    count = 30

    def scored(b: BlockBuilder) -> str:
        x = b.op("Transpose", b.op("Reshape", b.conv("x", 8, 8), b.ints(1, 8, 36)), perm=[0, 2, 1])
        x = b.op("MatMul", b.linear(x, 8, 8), b.op("Transpose", b.linear(x, 8, 8), perm=[0, 2, 1]))
        x = b.op("Concat", x, b.op("Slice", x, b.ints(0), b.ints(1), b.ints(2)), axis=2)
        for _ in range(count):
            x = b.op("Abs", x)
        return b.op("Abs", b.linear(x, 37, 8))

    ((product,),) = (together for together in stages_of(scored).products if together)
    each_ns = vector_ns(chip(), 36 * 37, 2)
    assert product.extra_ns == 2 * count * each_ns
    few, many = (replace(product, extra_ns=ns).best(40, 36, chip())[1] for ns in (0.0, 100 * product.extra_ns))
    assert few[1] < many[1] == 36


def test_layers_of_tokens_without_attention_are_no_stages():
    def layers(b: BlockBuilder) -> str:
        x = b.conv("x", 8, 8)
        for _ in range(2):
            tokens = b.linear(b.op("Transpose", b.op("Reshape", x, b.ints(1, 8, 36)), perm=[0, 2, 1]), 8, 8)
            x = b.conv(b.op("Reshape", b.op("Transpose", tokens, perm=[0, 2, 1]), b.ints(1, 8, 6, 6)), 8, 8)
        return x

    assert find_stages(laid(layers), chip(), {}) is None


def test_groups_end_at_breaks_or_count_what_lies_within():
    stages = stages_of(hybrid)
    cuts = list(stages.cuts())
    assert cuts[0] == ((0, 6),)
    assert ((0, 2), (2, 4), (4, 6)) in cuts
    assert all([*cut] == [*pairwise([0, *(last for _, last in cut)])] and cut[-1][1] == 6 for cut in cuts)
    layer_ns = {key: 1000.0 * (i + 1) for i, keys in enumerate(stages.breaks.values()) for key in keys}
    assert stages.other_layers_ns((0, 6), layer_ns) == 3000
    assert stages.other_layers_ns((2, 6), layer_ns) == 2000
    assert stages.other_layers_ns((2, 4), layer_ns) == 0


def test_a_group_is_occupied_while_a_sample_is_in_other_layers():
    stages, target = stages_of(between), chip()
    layer_ns = {key: 1e6 for keys in stages.breaks.values() for key in keys}
    whole, apart = ((0, LAYERS),), tuple((i, i + 1) for i in range(LAYERS))
    long, short = (group_stages(stages, target, 30, cut, DEFAULT_KNOBS, layer_ns) for cut in (whole, apart))
    assert long is not None
    assert short is not None
    assert long.interval_ns > 1e6 * (LAYERS - 1) > short.interval_ns
    assert min(long.latency_ns, short.latency_ns) > 1e6 * (LAYERS - 1)


@pytest.mark.parametrize("build", [hybrid, between, beside])
def test_the_program_is_right(build: Build):
    check(built(build, (1, 8, 6, 6)), xbar=32, xbars_per_core=8, cores=40)


def test_layers_are_before_the_attention_that_reads_them() -> None:
    """Values are made by the first chain, though the model has their layer behind the scores."""
    graph, chip = streamed(load(model_of_attention("attention")).graph), arch.load("bench", cores=64)
    makes = [node.operator for node in graph.nodes if isinstance(node.operator, Filter | Dot)]
    assert [isinstance(operator, Dot) for operator in makes] == [False, False, True, False, True, False]
    stages = find_stages(graph, chip, {})
    assert stages is not None
    assert [len(chain.layers) for chain in stages.chains] == [3, 1]
