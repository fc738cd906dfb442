"""Evaluated traffic between cores: programs send it, and chips begin where least of it crosses."""

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

import models
from raptor.mapping.multichip.chip_numbering import find_chip_begins, find_line_work
from raptor.mapping.multichip.chip_traffic import sum_core_traffic
from raptor.spatial.mesh_placement import list_messages
from tests.pipeline import line_flow, passes

MODELS = {
    "bert_tiny": {"depth": 3, "dim": 128, "heads": 4, "tokens": 32},
    "squeezenet": {"width": 0.5, "image_size": 128},
    "resnet18": {"width": 0.25, "image_size": 64},
    "mobilenet_v2": {"width": 0.5, "image_size": 64},
}
CHIP = {"xbar": 64, "xbars_per_core": 48, "cores": 36}
"""Fewer cores, so that cores exchange more."""


@pytest.mark.parametrize("name", MODELS)
def test_evaluated_traffic_is_what_cores_exchange(name: str):
    """For each number of cores: what those below it exchange with the others."""
    found = passes(models.build(name, seed=0, **MODELS[name]), mapping="rows", **CHIP)
    flow = line_flow(found.decision)
    arch = replace(found.arch, network=replace(found.arch.network, flit_bytes=1))
    evaluated = sum_core_traffic(find_line_work(found.chosen, ({**found.decision.layers}, flow), arch), arch)
    counted = np.zeros_like(evaluated)
    sent = list_messages(found.partition, arch)
    np.add.at(counted, (sent[:, 0], sent[:, 1]), sent[:, 2])
    for begin in range(4, 36, 4):
        wanted, got = ((of[:begin, begin:] + of[begin:, :begin].T).sum() for of in (counted, evaluated))
        assert got == pytest.approx(wanted, rel=0.2, abs=2000), begin


def begins_by_trial(cut_flits: list[float], cores: int, chips: int) -> float:
    """Returns what the busiest link carries at the best of all begins."""
    count = len(cut_flits) - 1
    every = (b for b in combinations_with_replacement(range(count + 1), chips - 1))
    fitting = [b for b in every if all(after - before <= cores for before, after in pairwise((0, *b, count)))]
    return min(max((cut_flits[begin] for begin in b), default=0.0) for b in fitting)


@pytest.mark.parametrize("seed", range(100))
def test_chips_begin_where_the_busiest_link_has_least_to_carry(seed: int):
    rng = np.random.default_rng(seed)
    chips, cores = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    count = int(rng.integers(1, chips * cores + 1))
    cut_flits = [0.0, *rng.integers(0, 50, count - 1).astype(float).tolist(), 0.0]
    begins = find_chip_begins(cut_flits, cores, chips)
    assert len(begins) == chips
    assert all(0 <= last - first <= cores for first, last in pairwise((*begins, count)))
    assert max(cut_flits[begin] for begin in begins) == begins_by_trial(cut_flits, cores, chips)


@pytest.mark.parametrize("link", ["5:1", "200:1"])
def test_a_transformer_crosses_a_link_with_little_more_than_its_tokens(link: str):
    """Attentions are numbered between the layers around them: the tokens cross, and those that are added later.

    For the throughput, as each chain and each attention then has cores of its own.
    """
    model = models.build("bert_tiny", seed=0, depth=6, dim=128, heads=4, tokens=32)
    chips = {"xbar": 64, "xbars_per_core": 48, "cores": 24, "chips": 2, "link": link, "knobs": {"latency": 0}}
    found = passes(model, mapping="rows", **chips)
    assert line_flow(found.decision).products
    assert len(set(found.partition.cores)) == 48
    crossing = []
    for placed in (found.partition, found.on_chip):
        sent = list_messages(placed, found.arch)
        crossing.append(sent[sent[:, 0] // 24 != sent[:, 1] // 24, 2].sum())
    assert 0 < crossing[1] <= crossing[0] <= 4 * 32 * 128 // found.arch.network.flit_bytes
