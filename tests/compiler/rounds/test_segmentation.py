"""The dynamic programme gives the best of all cuts, on the cost model with which models are compiled."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.compiler.rounds.range_estimate import RangeEstimates
from raptor.compiler.rounds.segmentation import cut_everywhere, cut_greedily, find_best_cuts
from raptor.frontend.segments.cut_points import divide_into_units
from raptor.options import ModelInputs
from raptor.target.arch import load
from raptor.target.device_file import load_device
from raptor.transforms.choose_recipes import RequantMethod
from tests.tiny_models import make_model, node, random


def brute_force(count: int, cuts: frozenset[int], cost: Callable[[int, int], float | None]) -> float | None:
    """Tries every set of cuts."""
    best = None
    for number in range(len(cuts) + 1):
        for chosen in combinations(sorted(cuts), number):
            own = [cost(a, b) for a, b in zip((0, *chosen), (*chosen, count), strict=True)]
            if None not in own and (best is None or sum(own) < best):
                best = sum(own)
    return best


def ranges_of(seed: int) -> tuple[RangeEstimates, int]:
    """A random sequence of up to 12 layers, a random chip and device, and a random batch."""
    rng = np.random.default_rng(seed)
    nodes, weights, x, ins = [], {}, "x", int(rng.integers(1, 9))
    shape = [1, ins, 6, 6]
    for k in range(int(rng.integers(1, 13))):
        outs, size = int(rng.integers(1, 25)), int(rng.choice([1, 3]))
        weights[f"w{k}"] = random(outs, ins, size, size, seed=k)
        nodes.append(node("Conv", f"{x} w{k}", f"a{k}", name=f"conv{k}", pads=[size // 2] * 4))
        if rng.integers(2):
            nodes.append(node("Relu", f"a{k}", f"r{k}", name=f"relu{k}"))
        x, ins = nodes[-1].output[0], outs
    model = make_model(nodes, {"x": shape}, [x], weights)
    arch = load(xbar=16, cores=int(rng.integers(1, 6)), xbars_per_core=int(rng.integers(4, 40)))
    device = load_device(str(rng.choice(["reram-puma", "reram-verify", "sram"])))
    units = divide_into_units(model, ModelInputs(), lambda _: None)
    batch = int(2 ** rng.integers(0, 9))
    return RangeEstimates(units, arch, device, "rows", RequantMethod("exact"), batch), batch


def check(seed: int) -> bool:
    """Compares with all cuts, and with two simple methods. Returns whether some cut is possible."""
    ranges, batch = ranges_of(seed)
    count, cuts = len(ranges.units.nodes), ranges.units.cuts

    def cost(first: int, last: int) -> float | None:
        way = ranges.best_configuration(first, last)
        return None if way is None else way.batch_ns(batch)

    simple = [method(count, cuts, cost) for method in (cut_greedily, cut_everywhere)]
    found, wanted = find_best_cuts(count, cuts, cost, ranges.least), brute_force(count, cuts, cost)
    assert (found is None) == (wanted is None)
    if found is None or wanted is None:
        return False
    assert found[1] == pytest.approx(wanted)
    for other in simple:
        assert other is None or other[1] >= found[1] * (1 - 1e-12)
    return True


def test_the_best_of_all_cuts():
    assert sum(check(seed) for seed in range(4)) >= 2


@pytest.mark.slow
def test_the_best_of_all_cuts_of_300_sequences():
    assert sum(check(seed) for seed in range(300)) >= 150


def test_of_equal_cuts_the_fewest_rounds():
    assert find_best_cuts(3, {1, 2}, lambda a, b: float(b - a)) == ((), 3.0)


def test_only_where_a_cut_is_allowed():
    costs = {(0, 1): 1.0, (1, 2): 1.0, (2, 3): 1.0, (0, 2): 5.0, (1, 3): 1.5}
    assert find_best_cuts(3, {1, 2}, lambda a, b: costs.get((a, b))) == ((1,), 2.5)
    assert find_best_cuts(3, {2}, lambda a, b: costs.get((a, b))) == ((2,), 6.0)
    assert find_best_cuts(3, set(), lambda a, b: costs.get((a, b))) is None


def test_longest_first_and_one_by_one():
    def cost(a: int, b: int) -> float | None:
        return 10.0 if b - a <= 2 else None

    assert cut_greedily(5, {1, 2, 3, 4}, cost) == ((2, 4), 30.0)
    assert cut_everywhere(5, {1, 2, 3, 4}, cost) == ((1, 2, 3, 4), 50.0)
    assert cut_greedily(5, {4}, cost) is None
    assert cut_everywhere(5, {4}, cost) is None


def test_the_refusal_of_a_unit_is_its_own():
    """Refusals of later units may have been found before."""
    nodes = [node("Conv", "x v", "a", name="wide"), node("Conv", "a w", "y", name="wider")]
    model = make_model(nodes, {"x": [1, 8, 6, 6]}, ["y"], {"v": random(40, 8, 3, 3), "w": random(60, 40, 3, 3)})
    arch = load(xbar=16, cores=1, xbars_per_core=4)
    units = divide_into_units(model, ModelInputs(), lambda _: None)
    ranges = RangeEstimates(units, arch, load_device("reram-puma"), "rows", RequantMethod("exact"), 1)
    ranges.refused[1, 2] = UserError("of the second unit")
    assert "full at layer wide (" in str(ranges.refusal(0))
    assert str(ranges.refusal(1)) == "of the second unit"
