"""`raptor arch defects`: what is drawn, and what a tester's CSV says."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from raptor.common.errors import UserError
from raptor.target.chip_file import ChipSize, load_chip_file
from raptor.tools.cli.app import build_commands
from raptor.tools.repair.draw_defects import DefectRates, draw_chip
from raptor.tools.repair.tester_csv import read_tester_csv

SIZE = ChipSize(cores=6, crossbars=3, rows=40, columns=50, arrays=2, converters=5, spare_columns=2, mesh_columns=3)
RATES = DefectRates(0.05, 0.25, 0.1, 0.05, 0.2, 0.2, 2, 3)
COMMAND = build_commands()


def invoke(*words: str) -> Result:
    return CliRunner().invoke(COMMAND, list(words))


def test_rates_of_what_is_drawn():
    size = SIZE.model_copy(update={"cores": 40})
    file = draw_chip(size, RATES, 1)
    arrays, cells = 40 * 3 * 2, 40 * 3 * 2 * 40 * 52
    counts = {
        "off": (sum(len(a.off) for a in file.arrays), cells, 0.0375),
        "on": (sum(len(a.on) for a in file.arrays), cells, 0.0125),
        "rows": (sum(len(a.rows) for a in file.arrays), arrays * 40, 0.1),
        "columns": (sum(len(a.columns) for a in file.arrays), arrays * 52, 0.05),
        "converters": (sum(len(a.converters) for a in file.arrays), arrays * 5, 0.2),
        "crossbars": (len(file.dead_crossbars), 120, 0.2),
    }
    for name, (found, of, rate) in counts.items():
        assert abs(found - of * rate) < 4 * np.sqrt(of * rate * (1 - rate)), name
    assert (len(file.dead_cores), len(set(file.dead_links))) == (2, 3)
    assert set(file.dead_links) <= set(size.list_links())


def test_what_is_drawn_depends_on_seed_and_place_alone():
    whole, again, other = (draw_chip(SIZE, RATES, seed) for seed in (3, 3, 4))
    assert whole == again
    assert whole.arrays != other.arrays
    part = draw_chip(SIZE, RATES, 3, [(2, 1), (4, 0)])
    assert part.arrays == tuple(a for a in whole.arrays if a.place[:2] in ((2, 1), (4, 0)))
    assert (part.dead_crossbars, part.dead_links) == (whole.dead_crossbars, whole.dead_links)


def test_no_rates_no_defects():
    file = draw_chip(SIZE, DefectRates(), 0)
    assert (file.dead_cores, file.dead_crossbars, file.dead_links, file.arrays) == ((), (), (), ())


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (DefectRates(dead_cores=7), "the chip has 6 cores"),
        (DefectRates(stuck=0.9), "a file holds at most"),
        (DefectRates(dead_links=8), "the chip has 7 links between neighbours"),
    ],
)
def test_rates_that_a_chip_cannot_have(rates: DefectRates, message: str):
    size = SIZE if not rates.stuck else SIZE.model_copy(update={"cores": 2**14, "rows": 2**10, "mesh_columns": 0})
    with pytest.raises(UserError, match=message):
        draw_chip(size, rates, 0)


GOOD = """core,crossbar,array,row,column,converter,link,defect
0,,,,,,,dead
1,2,,,,,,dead
1,0,0,7,,,,dead
1,0,1,,51,,,dead
1,0,1,,,4,,dead
2,1,0,3,4,,,off
2,1,0,3,5,,,on
2,1,0,3,4,,,off
4,,,,,,1,dead
1,,,,,,4,dead
3,,,,,,4,dead
"""


def test_a_testers_csv(tmp_path: Path):
    (tmp_path / "t.csv").write_text(GOOD)
    file = read_tester_csv(tmp_path / "t.csv", SIZE, "lot7")
    assert (file.name, file.dead_cores, file.dead_crossbars) == ("lot7", (0,), ((1, 2),))
    assert file.dead_links == ((1, 4), (3, 4))
    found = {a.place: (a.rows, a.columns, a.converters, a.off, a.on) for a in file.arrays}
    assert found == {
        (1, 0, 0): ((7,), (), (), (), ()),
        (1, 0, 1): ((), (51,), (4,), (), ()),
        (2, 1, 0): ((), (), (), (3 * 52 + 4,), (3 * 52 + 5,)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column core"),
        ("core,defekt\n", "line 1: no column defect"),
        ("core,defect,x\n", "line 1: column 'x'"),
        ("core,core,defect\n", "line 1: a column appears twice"),
        ("core,defect\n1\n", "line 2: 1 values, the first line has 2 columns"),
        ("core,defect\n6,dead\n", "line 2: core 6, but there are 6"),
        ("core,defect\n-1,dead\n", "line 2: core '-1': expected a whole number"),
        ("core,defect\n1,off\n", "line 2: defect 'off' of core: expected"),
        ("core,crossbar,row,column,defect\n1,0,2,3,dead\n", "line 2: defect 'dead' of core, crossbar, row, column"),
        ("core,array,defect\n1,0,dead\n", "line 2: defect 'dead' of core, array"),
        ("core,defect\n1,broken\n", "line 2: defect 'broken' of core"),
        ("core,crossbar,row,column,defect\n1,0,2,3,off\n1,0,2,3,on\n", "stuck at off and at on"),
        ("core,link,defect\n1,5,dead\n", "dead_links: 1 and 5 are no neighbours in a mesh of 6 cores in rows of 3"),
        ("core,link,defect\n1,6,dead\n", "line 2: link 6, but there are 6"),
        ("core,link,defect\n1,2,off\n", "line 2: defect 'off' of core, link"),
        ('core,defect\n"1,dead\n', "line 2: unexpected end of data"),
        ("core,defect\n1,dead\n" * 2, "line 3: core 'core'"),
    ],
)
def test_broken_csv(tmp_path: Path, text: str, message: str):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=r"t\.csv") as caught:
        read_tester_csv(tmp_path / "t.csv", SIZE, "t")
    assert message in str(caught.value)


def test_csv_of_bytes(tmp_path: Path):
    (tmp_path / "t.csv").write_bytes(b"core,defect\n\xff,dead\n")
    with pytest.raises(UserError, match="not a text in UTF-8: byte 12"):
        read_tester_csv(tmp_path / "t.csv", SIZE, "t")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ("arch", "defects", "bench", "--cores", "4", "--xbar", "16", "--xbars-per-core", "2")
    done = invoke(
        *words, "--stuck", "0.01", "--dead-cores", "1", "--spare-crossbars", "1", "--seed", "5", "--dead-links", "2"
    )
    assert done.exit_code == 0
    chip = load_chip_file(tmp_path / "chip.json")
    stuck = sum(len(a.off) + len(a.on) for a in chip.file.arrays)
    assert (
        done.output
        == f"chip.json: 4 cores with 3 crossbars of 16x16: {stuck} stuck cells, 1 dead cores, 2 dead links\n"
    )
    assert (chip.size.arrays, chip.size.converters, chip.size.all_crossbars) == (2, 16, 3)
    assert "exists" in str(invoke(*words).exception)
    (tmp_path / "t.csv").write_text("core,defect\n3,dead\n")
    assert invoke(*words, "--csv", "t.csv", "--force", "--single", "-q").output == ""
    chip = load_chip_file(tmp_path / "chip.json")
    assert (chip.file.name, chip.file.dead_cores, chip.size.arrays) == ("chip", (3,), 1)
    assert "--seed: not with --csv" in str(invoke(*words, "--csv", "t.csv", "--seed", "2", "--force").exception)
