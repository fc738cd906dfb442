"""Several chips are one network with dear links, whose use is reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.common.terminal.console import LiteralConsole
from raptor.target.arch import load
from raptor.target.arch.chip_links import LINK_PRESETS
from tests.oversized_models import CHIP, chain, in_rounds
from validator.checks import check
from validator.simulate.analysis.link_use import LinkUse
from validator.simulate.simulation_report import SimulationReport, show

SMALL = {"xbar": 16, "xbars_per_core": 16}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chips") / "out"
    raptor.compile(chain(4, 16, 12), **SMALL, cores=6, chips=2, link="board-ht").save(folder, stream_format="pim")
    return folder


def test_the_table_by_hand():
    """Two chips of 2x2 below each other: core 5 is at row 2, column 1."""
    target = load(cores=4, chips=2, link="7:100")
    assert (target.core_count, target.cores_per_chip, target.chips) == (8, 4, 2)
    table = target.table
    assert table is not None
    assert table.latency_ns[0, 3] == 2 * (1 + 2)
    assert table.latency_ns[0, 5] == 2 * (1 + 3) + 7
    assert table.latency_ns[5, 0] == table.latency_ns[0, 5]
    assert table.energy_pj[0, 3] == 46
    assert table.energy_pj[0, 5] == 146
    assert (table.latency_ns[3, -1], table.latency_ns[5, -1], table.energy_pj[5, -1]) == (15, 22, 146)
    found = json.loads(table.content)["latency"]
    assert found["0"]["5"] == table.latency_ns[0, 5]
    assert set(found["0"]) == {*map(str, range(1, 8)), "-10"}


def test_one_chip_is_as_ever(tmp_path: Path):
    for name, more in (("plain", {}), ("chips", {"chips": 1})):
        raptor.compile(chain(2), **SMALL, cores=6, **more).save(tmp_path / name)
    plain, chips = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()}
        for n in ("plain", "chips")
    )
    assert plain == chips


def test_programs_of_several_chips_are_right(out: Path):
    program = raptor.load(out)
    assert program.validate(samples=1).passed
    assert not check(out)
    chips = json.loads((out / "arch.json").read_bytes())["chips"]
    assert chips == {"count": 2, "link_ns": LINK_PRESETS["board-ht"].ns, "link_pj": LINK_PRESETS["board-ht"].pj}


def test_flits_over_a_link_by_hand(out: Path):
    """Every message between cores below 6 and others crosses, and every access of the others to memory."""
    report = raptor.simulate(out)
    (link,) = report.links
    crossed = 0
    for flow in _flows(out):
        ends = [0 if end < 0 else end // 6 for end in (flow.source, flow.to)]
        crossed += flow.bytes if ends[0] != ends[1] else 0
    assert crossed / 32 <= link.flits <= crossed
    assert link.flits > 0
    assert link.share == pytest.approx(link.flits * 5 / (report.latency_ns or 1.0))


def _flows(out: Path) -> Any:
    from validator.profile import profile

    return profile(out).traffic


def test_a_link_that_is_used_too_much_gives_no_time(out: Path, capsys: pytest.CaptureFixture[str]):
    report = raptor.simulate(out)
    used = SimulationReport("p", "e", "latency", latency_ns=100.0, links=(LinkUse((0, 1), 18, 0.9),))
    assert used.crowded_links
    assert not report.crowded_links
    show(used, LiteralConsole())
    text = capsys.readouterr().out
    assert "at least 100 ns" in text
    assert "no time is known" in text


def test_a_file_with_chips(tmp_path: Path):
    """The file that --chips makes can be given with --arch, and its table is used as it is."""
    raptor.compile(chain(2), **SMALL, cores=4, chips=2, link="9:10").save(tmp_path / "out")
    again = load(tmp_path / "out" / "arch.json")
    assert again.chips == 2
    assert again.table is not None
    latency = again.table.latency_ns
    wanted = load(cores=4, chips=2, link="9:10").table
    assert wanted is not None
    assert np.array_equal(latency, wanted.latency_ns)


def test_dear_links_are_crossed_less(tmp_path: Path):
    """The places follow the table: with dear links fewer flits cross than with free ones."""
    flits = []
    for link in ("0:0", "500:0"):
        raptor.compile(chain(4, 16, 12), **SMALL, cores=16, chips=2, link=link).save(tmp_path / link[0])
        flits.append(raptor.simulate(tmp_path / link[0]).links[0].flits)
    assert flits[1] <= flits[0]


def test_rounds_and_chips_combine(tmp_path: Path):
    _, artifacts = in_rounds(chain(4), tmp_path / "out", **CHIP | {"cores": 1}, chips=2, link="package-ucie")
    assert artifacts.rounds is not None
    assert len(artifacts.rounds.rounds) > 1
    report = raptor.simulate(tmp_path / "out")
    assert len(report.links) == 1
    assert report.reloading is not None


def test_bad_chips():
    for options, text in (
        ({"chips": 2}, "chips=2: say what a flit costs from chip to chip, with link="),
        ({"link": "board-ht"}, "link=: only with chips="),
        ({"chips": 2, "link": "fast"}, "link='fast': expected board-ht or package-ucie, or ns and pJ"),
        ({"chips": 2, "link": "-1:3"}, "link='-1:3': expected"),
        ({"chips": 0}, "chips=0: expected a whole number, 1 to"),
    ):
        with pytest.raises(UserError, match=text):
            load(cores=4, **options)


def test_cores_that_chips_cannot_share(tmp_path: Path):
    found = json.loads((Path(raptor.__file__).parent / "target" / "presets" / "bench.json").read_bytes())
    found["chips"] = {"count": 5, "link_ns": 5, "link_pj": 1}
    (tmp_path / "arch.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match="144 cores cannot be shared evenly"):
        load(tmp_path / "arch.json")
