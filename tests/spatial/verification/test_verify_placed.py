"""Placement and schedule are verified as a renaming of cores and as a permutation; whatever else they do is refused."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from raptor.common.errors import InternalError, VerifyError
from raptor.mapping.decision import LineFlow
from raptor.spatial import (
    Partition,
    PlacedGraph,
    Schedule,
    partition,
    place_cores,
    schedule,
    verify_partition,
    verify_placed,
    verify_schedule,
)
from raptor.spatial.ir import Copy
from raptor.spatial.mesh_placement import list_messages
from raptor.target.avoid_defects import avoid_defects
from raptor.target.chip_file import ChipFile, make_chip
from raptor.tools.repair.chip_writer import make_size
from tests.mesh_walks import walk
from tests.pipeline import THESIS_CHIP, Passes, conv_model, passes, thesis_model
from tests.tiny_models import make_model, node, random
from tests.values import replace

CHIP: dict[str, Any] = {"xbar": (16, 16), "xbars_per_core": 40, "cores": 60, "mapping": "rows"}
MODEL = make_model(
    [
        node("Conv", "x w", "t", name="first", pads=[1, 1, 1, 1]),
        node("MaxPool", "t", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p v", "c", name="second", pads=[1, 1, 1, 1]),
        node("Add", "c p", "y"),
    ],
    {"x": (1, 3, 12, 12)},
    ["y"],
    {"w": random(20, 3, 3, 3), "v": random(20, 20, 3, 3)},
)


@pytest.fixture(scope="module")
def good() -> Passes:
    """The passes of a program on half of the cores, so that messages leave some links alone."""
    return passes(MODEL, **CHIP, knobs={"share": 0.5})


def test_accepted(good: Passes):
    assert len(set(good.partition.cores)) > 3
    assert good.on_chip.cores != good.partition.cores
    assert good.schedule.fetches
    assert good.schedule.order != tuple(range(len(good.schedule.order)))
    verify_partition(good.partition, good.arch)
    verify_placed(good.on_chip, good.partition, good.arch)
    verify_schedule(good.schedule, good.on_chip)


# Partition


def test_cores_that_the_chip_has_not(good: Passes):
    for core in (-1, good.arch.core_count):
        with pytest.raises(VerifyError, match=f"partition: core {core} of 60"):
            verify_partition(replace(good.partition, cores=(core, *good.partition.cores[1:])), good.arch)


def test_more_crossbars_than_a_core_has():
    """Two computes that fit a core each, and not together."""
    result = passes(thesis_model(4, 8), **THESIS_CHIP)
    first, _, *rest = result.partition.cores
    with pytest.raises(VerifyError, match="partition: core 0 needs 10 crossbars, a core has 5"):
        verify_partition(replace(result.partition, cores=(first, first, *rest)), result.arch)


def test_a_compute_without_a_core(good: Passes):
    with pytest.raises(VerifyError, match=r"partition: \d+ cores, \d+ positions, \d+ computes"):
        verify_partition(replace(good.partition, cores=good.partition.cores[1:]), good.arch)


# Placement


def _two_cores_swapped_in_one_compute(placed: PlacedGraph) -> PlacedGraph:
    """The first computes of two cores change places, the others of these cores stay."""
    other = next(i for i, core in enumerate(placed.cores) if core != placed.cores[0])
    cores = list(placed.cores)
    cores[0], cores[other] = cores[other], cores[0]
    return replace(placed, cores=tuple(cores))


def _two_cores_on_one(placed: PlacedGraph) -> PlacedGraph:
    """The crossbars of two cores would be needed on one."""
    first, second, *_ = dict.fromkeys(placed.cores)
    return replace(placed, cores=tuple(first if core == second else core for core in placed.cores))


def _a_copy(placed: PlacedGraph, computes: slice) -> PlacedGraph:
    """Graph with the given computes, all or some."""
    graph = replace(placed.graph, computes=placed.graph.computes[computes])
    return replace(placed, graph=graph, cores=placed.cores[computes], positions=placed.positions[computes])


def _shifted(placed: PlacedGraph, by: int) -> PlacedGraph:
    return replace(placed, cores=tuple(core + by for core in placed.cores))


WRONG_PLACES: dict[str, tuple[Callable[[PlacedGraph], PlacedGraph], str]] = {
    "cores of two computes swapped": (_two_cores_swapped_in_one_compute, r"core \d+ stands for 2 others"),
    "two cores on one": (_two_cores_on_one, r"core \d+ stands for 2 others"),
    "beyond the chip": (lambda p: _shifted(p, 60), r"core \d+ of 60"),
    "before the chip": (lambda p: _shifted(p, -60), r"core -\d+ of 60"),
    "a compute lost": (lambda p: _a_copy(p, slice(1, None)), "are not those of the partition"),
    "in another order": (lambda p: _a_copy(p, slice(None, None, -1)), "are not those of the partition"),
    "a core lost": (lambda p: replace(p, cores=p.cores[1:]), r"\d+ cores, \d+ positions, \d+ computes"),
}


@pytest.mark.parametrize("mistake", WRONG_PLACES)
def test_a_wrong_placement(good: Passes, mistake: str):
    change, message = WRONG_PLACES[mistake]
    with pytest.raises(VerifyError, match=f"place_cores: .*{message}"):
        verify_placed(change(good.on_chip), good.partition, good.arch)


def test_a_message_over_a_dead_link(good: Passes):
    """The placement of a chip whose links work, on one with a dead link between two cores that exchange values."""
    sender, receiver, _ = list_messages(good.on_chip, good.arch)[0].tolist()
    cols = good.arch.mesh_cols
    size = make_size(good.arch, 1)
    for link in size.list_links():
        chip = make_chip(ChipFile(version=1, name="die", source="a test", size=size, dead_links=(link,)))
        around = avoid_defects(good.arch, chip, "here")
        if link in walk(sender, receiver, cols) | walk(receiver, sender, cols):
            with pytest.raises(VerifyError, match=r"place_cores: cores \d+ and \d+ exchange values over a dead link"):
                verify_placed(good.on_chip, good.partition, around)
    pairs = list_messages(good.on_chip, good.arch)[:, :2].tolist()
    used = {link for a, b in pairs for link in walk(a, b, cols) | walk(b, a, cols)}
    unused = next(link for link in size.list_links() if link not in used)
    chip = make_chip(ChipFile(version=1, name="die", source="a test", size=size, dead_links=(unused,)))
    verify_placed(good.on_chip, good.partition, avoid_defects(good.arch, chip, "here"))


# Schedule


def _exchanged(order: Schedule, first: int, second: int) -> Schedule:
    """Two computes or fetches, by number, in each other's place."""
    steps = list(order.order)
    i, j = steps.index(first), steps.index(second)
    steps[i], steps[j] = second, first
    return replace(order, order=tuple(steps))


def _a_reader_before_what_it_reads(order: Schedule) -> Schedule:
    computes = order.placed.graph.computes
    makers = {tile.name: i for i, compute in enumerate(computes) for tile in compute.results}
    pairs = ((makers[t.name], i) for i, c in enumerate(computes) for t in c.inputs if t.name in makers)
    return _exchanged(order, *next(pairs))


def _a_reader_before_the_last_copy(order: Schedule) -> Schedule:
    """A tile that several copies fill is read when all but the last are done."""
    computes = order.placed.graph.computes
    copies = {c.results[0].name: i for i, c in enumerate(computes) if isinstance(c.body[0], Copy)}
    names = [c.results[0].name for c in computes if isinstance(c.body[0], Copy)]
    last, name = next((i, name) for name, i in copies.items() if names.count(name) > 1)
    reader = next(i for i, c in enumerate(computes) if any(t.name == name for t in c.inputs))
    return _exchanged(order, last, reader)


def _a_fetch_before_its_tile(order: Schedule) -> Schedule:
    computes = order.placed.graph.computes
    maker = next(i for i, c in enumerate(computes) if order.fetches[0].tile in c.results)
    return _exchanged(order, maker, len(computes))


def _a_fetch_after_its_use(order: Schedule) -> Schedule:
    computes, cores, fetch = order.placed.graph.computes, order.placed.cores, order.fetches[0]
    users = (i for i, c in enumerate(computes) if cores[i] == fetch.core and fetch.tile in c.inputs)
    steps = list(order.order)
    steps.remove(len(computes))
    steps.insert(steps.index(next(users)) + 1, len(computes))
    return replace(order, order=tuple(steps))


def _fetched_twice(order: Schedule) -> Schedule:
    fetches = (*order.fetches, order.fetches[0])
    return replace(order, fetches=fetches, order=(*order.order, len(order.order)))


def _an_unknown_tile(order: Schedule) -> Schedule:
    first = replace(order.fetches[0], tile=replace(order.fetches[0].tile, name="lost"))
    return replace(order, fetches=(first, *order.fetches[1:]))


WRONG_ORDERS: dict[str, tuple[Callable[[Schedule], Schedule], str]] = {
    "a dependency swapped": (_a_reader_before_what_it_reads, "which comes later"),
    "backwards": (lambda s: replace(s, order=s.order[::-1]), "which comes later"),
    "read before it is filled": (_a_reader_before_the_last_copy, "which comes later"),
    "a fetch too early": (_a_fetch_before_its_tile, "which comes later"),
    "a fetch too late": (_a_fetch_after_its_use, "needs the fetch of .*, which comes later"),
    "a compute lost": (lambda s: replace(s, order=s.order[:-1]), "no permutation"),
    "a compute twice": (lambda s: replace(s, order=(*s.order, s.order[0])), "no permutation"),
    "a compute instead of another": (lambda s: replace(s, order=(s.order[-1], *s.order[1:])), "no permutation"),
    "a compute that is none": (lambda s: replace(s, order=(len(s.order), *s.order[1:])), "no permutation"),
    "a fetch lost": (lambda s: replace(s, fetches=s.fetches[1:]), "no permutation"),
    "fetched twice": (_fetched_twice, "is fetched to core .* twice"),
    "an unknown tile fetched": (_an_unknown_tile, "never made"),
    "of another placement": (lambda s: replace(s, placed=_shifted(s.placed, 1)), "not those that were placed"),
}


@pytest.mark.parametrize("mistake", WRONG_ORDERS)
def test_a_wrong_schedule(good: Passes, mistake: str):
    change, message = WRONG_ORDERS[mistake]
    with pytest.raises(VerifyError, match=f"schedule: .*{message}"):
        verify_schedule(change(good.schedule), good.on_chip)


def test_layer_by_layer_fetches_are_numbered_through():
    """Both layers make partial sums on several cores, which are fetched; each layer is scheduled alone."""
    weights = {"w": random(20, 40, 3, 3), "v": random(20, 20, 3, 3)}
    nodes = [
        node("Conv", "x w", "t", name="first", pads=[1] * 4),
        node("Conv", "t v", "y", name="second", pads=[1] * 4),
    ]
    done = passes(make_model(nodes, {"x": (1, 40, 8, 8)}, ["y"], weights), **CHIP)
    flow = done.decision.flow
    assert isinstance(flow, LineFlow)
    by_layer = schedule(done.on_chip, replace(done.decision, flow=replace(flow, streamed=False)), done.arch)
    verify_schedule(by_layer, done.on_chip)
    assert {fetch.node for fetch in by_layer.fetches} == {"first", "second"}
    steps = [step.node for _, step in by_layer.steps()]
    assert steps == sorted(steps)


# In the pipeline


@pytest.mark.parametrize("name", ["partition", "place_cores", "schedule"])
def test_each_pass_is_verified(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A pass that goes wrong is told by its name, not by a pass after it. With a stored mapping, all of them run."""
    model = conv_model((1, 3, 8, 8), 4, pads=(1, 1, 1, 1))
    passes(model, **CHIP, emit_mapping=tmp_path / "mapping.json")

    def shifted(value: Partition | PlacedGraph | Schedule) -> object:
        if isinstance(value, Schedule):
            return replace(value, order=value.order[::-1])
        return replace(value, cores=tuple(core + 60 for core in value.cores))

    right: Callable[..., Any] = {"partition": partition, "place_cores": place_cores, "schedule": schedule}[name]

    @wraps(right)
    def wrong(*given: Any) -> object:
        return shifted(right(*given))

    monkeypatch.setattr(f"raptor.spatial.{name}", wrong)
    with pytest.raises(InternalError, match=f"^{name} failed after"):
        passes(model, **CHIP | {"mapping": tmp_path / "mapping.json"})


def test_they_print_what_was_decided(good: Passes):
    assert "virtual_cores" in str(good.partition)
    assert str(good.spatial) in str(good.partition)
    assert len(str(good.schedule).splitlines()) == len(good.schedule.order) + 2
    fetch = good.schedule.fetches[0]
    assert f"  core {fetch.core}: fetch {fetch.tile}  # {fetch.node}\n" in str(good.schedule)
    for core, compute in zip(good.on_chip.cores, good.spatial.computes, strict=True):
        line = next(line for line in str(good.on_chip).splitlines() if line.startswith(f"  core {core}: "))
        assert str(compute.results[0]) in line
