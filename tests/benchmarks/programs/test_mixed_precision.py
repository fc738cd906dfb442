"""The published policies of mixed precision in the cost model of their publication."""

import argparse
from dataclasses import replace

import pytest

from benchmarks.programs.mixed_precision import EIGHT_BITS, MixedBench, make_policy, order_as_published
from benchmarks.search import published_policies
from benchmarks.search.published_policies import (
    POLICIES,
    PublishedPolicy,
    list_layers,
    published_factor,
    published_latency_us,
)

FACTORS = [2.482, 1.509, 1.660, 2.374, 2.032, 2.703, 2.260, 1.562, 1.818, 2.199, 2.115, 1.586, 2.197, 2.200]


def test_all_published_policies_are_there() -> None:
    kinds = [(p.model, p.fixed, p.points, p.cell_bits) for p in POLICIES]
    assert len(set(kinds)) == len(kinds) == 14
    layers = {"vgg16": 16, "resnet18": 21, "vit_b_32": 74}
    for policy in POLICIES:
        assert {len(list_layers(policy.model)), *map(len, policy.bits)} == {layers[policy.model]}
        assert {*policy.bits[0], *policy.bits[1]} <= set(range(2, 9))


@pytest.mark.parametrize(("policy", "factor"), [*zip(POLICIES, FACTORS, strict=True)])
def test_factors_of_the_publication(policy: PublishedPolicy, factor: float) -> None:
    assert published_factor(policy) == pytest.approx(factor, abs=5e-4)


def test_half_of_the_best_factor_are_fewer_slices() -> None:
    vgg, eights = POLICIES[0], "8" * 16
    alone = [published_factor(p) for p in (replace(vgg, inputs=eights), replace(vgg, weights=eights))]
    assert alone == pytest.approx([1.644, 1.650], abs=5e-4)


def test_writes_take_little_of_the_published_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_latencies() -> list[float]:
        cases = [(p, bits) for p in POLICIES for bits in (p.bits, ([8] * len(p.weights), [8] * len(p.weights)))]
        return [published_latency_us(list_layers(p.model), w, a, p.cell_bits) for p, (w, a) in cases]

    whole = list_latencies()
    monkeypatch.setattr(published_policies, "WRITE_US", 0.0)
    shares = [1 - products / both for products, both in zip(list_latencies(), whole, strict=True)]
    assert (round(min(shares), 2), round(max(shares), 2)) == (0.03, 0.11)


def test_a_projection_comes_before_its_block() -> None:
    names = ["conv1", "layer2.0.conv1", "layer2.0.conv2", "layer2.0.downsample.0", "layer2.1.conv1", "fc"]
    wanted = ["conv1", "layer2.0.downsample.0", "layer2.0.conv1", "layer2.0.conv2", "layer2.1.conv1", "fc"]
    assert order_as_published(names) == wanted


def test_bits_between_those_of_onnx_are_rounded_up() -> None:
    policy = make_policy(["a", "b"], PublishedPolicy("vgg16", "both", 5, 4, "48", "36"))
    assert (policy.weights, policy.inputs) == ({"a": 4}, {"a": 4})
    assert make_policy(["a"], PublishedPolicy("vgg16", "both", 5, 4, "8", "8")) == EIGHT_BITS


def test_networks_that_are_not_there_have_no_program() -> None:
    bench = MixedBench(argparse.Namespace(size=32, width=0.125, cores=64))
    assert bench.format_factors(POLICIES[-1]) == ("2.200", "", "")
