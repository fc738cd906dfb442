"""Figures and tables of the pages, as data: without a browser."""

import numpy as np
import pytest

import raptor
from raptor.tools.reporting.chip_figures import draw_layer_times
from raptor.tools.reporting.key_figures import list_key_figures
from raptor.tools.reporting.plot_parts import make_core_axis, round_ticks
from raptor.tools.reporting.power_figures import draw_core_power, draw_power
from raptor.tools.reporting.program_comparison import _layer_table, _timed_layers
from raptor.tools.reporting.program_facts import ProgramFacts, gather_facts
from raptor.tools.reporting.report_tables import FOLDED_ROWS, make_flow_table, make_layer_table, make_link_table
from tests.tiny_models import make_model, node, random
from validator.simulate import builtin


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> list[ProgramFacts]:
    """A chain of layers, by two mappings. The Identity takes no time in either."""
    folder = tmp_path_factory.mktemp("figures")
    nodes = [
        node("Conv", "x w1", "a", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b", name="relu"),
        node("Conv", "b w2", "c", name="second"),
        node("MaxPool", "c", "y", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = {"w1": random(16, 3, 3, 3), "w2": random(16, 16, 3, 3)}
    model = make_model(nodes, {"x": (1, 3, 12, 12)}, ["y"], constants)
    chip = {"xbar": 32, "cores": 36}
    programs = {m: raptor.compile(model, mapping=m, **chip) for m in ("rows", "raptor")}
    return [gather_facts(program.save(folder / mapping)) for mapping, program in programs.items()]


def test_bars_of_a_comparison_are_in_the_order_of_its_table(outs: list[ProgramFacts]) -> None:
    names = _timed_layers(outs)
    table = _layer_table(outs, names)
    assert [row[0].value for row in table.rows] == names
    assert names == [layer.name for layer in outs[0].layers if layer.name in names]
    figure = draw_layer_times([(f.name, f.profile) for f in outs], names)
    assert all(bars["y"] == names for bars in figure.data)
    for k, facts in enumerate(outs):
        times = {p.name: p.critical_ns or 0.0 for p in facts.profile.parts}
        assert facts.profile.estimate is not None
        whole = facts.profile.estimate.latency_ns
        assert figure.data[k]["x"] == pytest.approx([100 * times.get(name, 0.0) / whole for name in names], rel=1e-3)


def test_layers_on_no_critical_path_are_left_out(outs: list[ProgramFacts]) -> None:
    for facts in outs:
        timed = {p.name for p in facts.profile.parts if p.critical_ns}
        assert timed <= set(_timed_layers(outs))
    table = _layer_table(outs, _timed_layers(outs))
    assert all(max(float(row[1].value), float(row[2].value)) > 0 for row in table.rows)


def test_what_is_seen_first_and_what_when_asked_for(outs: list[ProgramFacts]) -> None:
    columns = {column.name: column.detail for column in make_layer_table(outs[0]).columns}
    assert not columns["time"]
    assert columns["unfolding"]
    flows = make_flow_table(outs[0])
    assert flows.folded == (len(flows.rows) > FOLDED_ROWS)
    assert not make_layer_table(outs[0]).folded


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (2.13, [0, 0.5, 1, 1.5, 2]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3400, [0, 1000, 2000, 3000]),
        (0.07, [0, 0.02, 0.04, 0.06]),
        (0, [0]),
    ],
)
def test_ticks_are_round(largest: float, ticks: list[float]) -> None:
    assert round_ticks(largest) == ticks


@pytest.mark.parametrize("most", range(1, 9))
def test_there_are_ticks_for_any_size(most: int):
    for largest in np.geomspace(1e-9, 1e9, 400):
        ticks = round_ticks(float(largest), most)
        assert 1 <= len(ticks) <= max(most, 2)
        assert ticks[-1] <= largest * (1 + 1e-9)


@pytest.mark.parametrize(("count", "named"), [(3, 3), (64, 64), (65, 33), (144, 48)])
def test_every_core_is_named_while_there_is_room(count: int, named: int) -> None:
    cores = [2 * k + 5 for k in range(count)]
    axis = make_core_axis(cores)
    assert len(axis["tickvals"]) == named
    assert axis["tickvals"][:2] == ["5", str(cores[-(-count // 64)])]


def test_power_is_drawn_as_it_was_counted(outs: list[ProgramFacts]) -> None:
    found = outs[0].profile.power
    assert found is not None
    curve = draw_power(found)
    ends = np.array(curve.data[0]["x"])
    watts = np.array([trace["y"] for trace in curve.data])
    energy = (np.diff(ends) * watts[:, :-1].sum(axis=0)).sum()
    estimate = outs[0].profile.estimate
    assert estimate is not None
    assert energy / ends[-1] == pytest.approx(sum(estimate.energy_pj.values()) / estimate.latency_ns / 1000, rel=1e-4)
    cores = draw_core_power(found).data[0]
    assert cores["y"] == [str(core) for core in found.cores]
    without_work = 36 - len(found.cores) + 1  # cores and global memory, with a static mW each
    assert found.core_watts.sum(axis=0) == pytest.approx(found.by_part.watts.sum(axis=0) - 1e-3 * without_work)
    figures = {figure.key: figure.value for figure in list_key_figures(outs[0])}
    assert figures["power_peak_w"] == found.alone.peak_w
    assert figures["power_average_w"] == pytest.approx(found.alone.average_w)


def test_links_are_those_of_the_simulation(outs: list[ProgramFacts]) -> None:
    found = outs[0].profile.power
    assert found is not None
    assert found.mesh is not None
    steady = builtin.simulate(outs[0].profile.program, mode="throughput").mesh_links
    assert found.mesh == steady
    table = make_link_table(found.mesh)
    assert [row[0].value for row in table.rows] == [link.link for link in found.mesh.hottest]
