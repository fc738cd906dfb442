"""Plans of layers on cores that several layers share."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from raptor.mapping.allocation.bin_packing import pack_layers
from raptor.mapping.allocation.core_division import CoreDivision, plan_options
from raptor.mapping.decision import LineGrid
from raptor.mapping.modes.plan_choice import LayerPlan, pareto_front

XBARS = 20


def plan_of(cores: int, xbars: int, core_ns: float) -> LayerPlan:
    """A column of cores."""
    return LayerPlan(LineGrid(((0, 1),) * cores, ((),), ((0, 1),), 1, 1, 0, 1), xbars, core_ns)


@st.composite
def plans(draw: st.DrawFn) -> list[LayerPlan]:
    """Draws the plans of one layer: a few grids of different shapes."""
    found: list[LayerPlan] = []
    for _ in range(draw(st.integers(1, 4))):
        cells = draw(st.integers(1, 4))
        xbars, core_ns = draw(st.integers(0, XBARS)), draw(st.integers(1, 1000))
        found.append(plan_of(cells, xbars, float(core_ns)))
    return found


def test_slower_plans_that_need_more_cores_are_left_out():
    few, slow, many = (plan_of(n, 1, t) for n, t in ((1, 9.0), (2, 9.5), (3, 4.0)))
    assert pareto_front([many, slow, few]) == [few, many]


def test_no_correction_shortens_the_time_at_the_port():
    """It shortens what follows the last load."""
    plan = replace(plan_of(1, 0, 100.0), port_ns=60.0, behind_ns=20.0)
    assert [plan.weighted(1, factor).core_ns for factor in (0.5, 1, 2)] == [70, 100, 200]
    assert plan.weighted(1, 0.5).weighted(1, 2).core_ns == 100
    assert plan.scaled(0.5, plan.grid).weighted(1, 0.5).core_ns == 35


def cores_of(fronts: dict[str, list[LayerPlan]], cores: int) -> list[tuple[int, ...]]:
    """The cores of each plan when the slowest ones have grown to so many cores."""
    division = CoreDivision.with_fewest_cores([plan_options(key, front) for key, front in fronts.items()])
    return [placed.cores for placed in division.grown(cores).placed()[1].values()]


def test_cores_of_their_own():
    """The layers have two cores, none, and one."""
    two, none, one = (plan_of(n, 1, 1.0) for n in (2, 0, 1))
    assert cores_of({"a": [two], "b": [none], "c": [one]}, 3) == [(0, 1), (), (2,)]


def test_a_layer_that_cannot_grow_leaves_the_cores_to_others():
    """The slower layer would need four cores more, and there are two."""
    slow, quick = [plan_of(1, 1, 10.0), plan_of(5, 1, 5.0)], [plan_of(1, 1, 8.0), plan_of(2, 1, 4.0)]
    assert cores_of({"slow": slow, "quick": quick}, 4) == [(0,), (1, 2)]


def test_the_slowest_layer_grows_first():
    slow, quick = [plan_of(1, 1, 10.0), plan_of(2, 1, 5.0)], [plan_of(1, 1, 8.0), plan_of(2, 1, 4.0)]
    assert cores_of({"quick": quick, "slow": slow}, 3) == [(0,), (1, 2)]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), plans(), min_size=1), st.integers(1, 12))
def test_shared_cores_hold_their_layers(given_: dict[str, list[LayerPlan]], cores: int):
    """A core has at most its crossbars, and a layer only once; cores are numbered without gaps."""
    placed = pack_layers(given_, cores, XBARS)
    if placed is None:
        return
    xbars = Counter[int]()
    for key, layer in placed.items():
        assert layer.plan in given_[key]
        assert len(set(layer.cores)) == len(layer.cores) == layer.plan.cores
        xbars.update(dict.fromkeys(layer.cores, layer.plan.xbars))
    assert sorted(xbars) == list(range(len(xbars)))
    assert len(xbars) <= cores
    assert max(xbars.values()) <= XBARS


def test_the_busiest_core_has_little_to_do():
    """Four layers on two halves of a core each, two on a whole one: six cores are as busy as the slowest layer."""
    half, whole = (plan_of(n, 4, t) for n, t in ((2, 5.0), (1, 10.0)))
    placed = pack_layers({"a": [half], "b": [half], "c": [half], "d": [half], "e": [whole], "f": [whole]}, 6, XBARS)
    assert placed is not None
    work = Counter[int]()
    for layer in placed.values():
        work.update(dict.fromkeys(layer.cores, int(layer.plan.core_ns)))
    assert max(work.values()) == 10


def test_layers_that_do_not_fit():
    plan = plan_of(1, 11, 1.0)
    assert pack_layers({"a": [plan], "b": [plan]}, 1, XBARS) is None
