"""The chip file: every rule of its reader, the states that it describes, and what works of a core."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.target import arch
from raptor.target.avoid_defects import check_chip_fits
from raptor.target.chip_file import CellState, ChipFile, ChipSize, chip_to_json, load_chip_file, make_chip

SIZE = {"cores": 4, "crossbars": 2, "rows": 3, "columns": 4, "arrays": 2, "converters": 2}
MESH = {**SIZE, "mesh_columns": 2}
SPARE = {**SIZE, "spare_crossbars": 1, "spare_columns": 1}


def content(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "name": "die", "source": "a tester", "size": SPARE, **changes}


def array(**changes: Any) -> dict[str, Any]:
    return {"core": 1, "crossbar": 0, **changes}


def make(**changes: Any):
    return make_chip(ChipFile.model_validate_json(json.dumps(content(**changes))))


def test_links_of_a_mesh(tmp_path: Path):
    """A chip file that is read twice is parsed once, unless its content changed."""
    size = ChipSize.model_validate({**SIZE, "cores": 5, "mesh_columns": 2})
    assert size.list_links() == [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)]
    assert ChipSize.model_validate({**SIZE, "mesh_columns": 1}).list_links() == [(0, 1), (1, 2), (2, 3)]
    assert ChipSize.model_validate(SIZE).list_links() == []
    chip = make(size=MESH, dead_links=[[0, 1]])
    (tmp_path / "chip.json").write_bytes(chip_to_json(chip.file))
    found = load_chip_file(tmp_path / "chip.json")
    assert found is load_chip_file(tmp_path / "chip.json")
    assert found.file.dead_links == ((0, 1),)
    (tmp_path / "chip.json").write_bytes(chip_to_json(make(size=MESH, dead_links=[[1, 3]]).file))
    assert load_chip_file(tmp_path / "chip.json").file.dead_links == ((1, 3),)


def test_routes_of_another_mesh_are_refused():
    target = arch.load("bench", cores=4, xbar=(3, 4), xbars_per_core=2)
    chip = make(size=MESH, dead_links=[[0, 1]])
    check_chip_fits(chip, target, "here")
    tall = replace(target, network=replace(target.network, rows=4, cols=1))
    with pytest.raises(UserError, match="here: chip 'die' has a mesh with rows of 2 cores, the architecture rows of 1"):
        check_chip_fits(chip, tall, "here")
    check_chip_fits(make(size=MESH), tall, "here")  # without dead links, routes do not matter
    with pytest.raises(UserError, match="has dead links, but the architecture has several chips"):
        check_chip_fits(chip, replace(target, chips=2), "here")


def test_states_of_an_array():
    chip = make(arrays=[array(array=1, rows=[2], columns=[4], converters=[1], off=[0, 6], on=[1, 10])])
    dead, off, on = CellState.DEAD, CellState.OFF, CellState.ON
    wanted = [[off, on, dead, dead, dead], [0, off, dead, dead, dead], [dead] * 5]
    assert chip.read_states(1, 0, 1).tolist() == wanted
    assert not chip.read_states(1, 0, 0).any()


def test_what_works_of_a_core():
    found = [array(core=0, rows=[0]), array(core=1, columns=[1]), array(core=2, columns=[1, 2])]
    chip = make(dead_cores=[3], dead_crossbars=[[1, 1], [2, 2]], arrays=found)
    assert [chip.list_crossbars(core) for core in range(4)] == [[0, 1, 2], [0, 2], [0, 1], []]
    # A spare crossbar stands in for the one with a dead row, a spare column for a dead one, but not for two.
    assert [chip.count_whole_crossbars(core) for core in range(4)] == [2, 2, 1, 0]
    # A matrix needs the first rows and columns alone.
    lower = make(arrays=[array(rows=[2], columns=[2, 3])])
    needs = [(2, 2), (3, 2), (2, 3), (2, 4)]
    assert [lower.has_whole_lines(1, 0, 0, *need) for need in needs] == [True, False, True, False]


def test_equal_files_have_equal_bytes_and_digests(tmp_path: Path):
    chip = make(arrays=[array(off=[3])])
    (tmp_path / "chip.json").write_bytes(chip_to_json(chip.file))
    again = load_chip_file(tmp_path / "chip.json")
    assert (again.file, again.digest) == (chip.file, chip.digest)
    assert make().digest != chip.digest
    indented = tmp_path / "indented.json"
    indented.write_text(json.dumps(json.loads(chip_to_json(chip.file)), indent=4))
    assert load_chip_file(indented).digest == chip.digest


def test_a_chip_of_another_architecture_is_refused():
    target = arch.load("bench", cores=4, xbar=(3, 4), xbars_per_core=2)
    check_chip_fits(make(), target, "here")
    for other in (target.with_xbars_per_core(3), replace(target, core_count=5)):
        with pytest.raises(UserError, match="here: chip 'die' has 4 cores with 2 crossbars of 3x4, the architecture"):
            check_chip_fits(make(), other, "here")
    with pytest.raises(UserError, match="here: chip 'die' has cells of 2 bits, the architecture of 8"):
        check_chip_fits(make(size={**SPARE, "cell_bits": 2}), target, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": {**SIZE, "converters": 3}}, "4 columns cannot be shared evenly by 3 converters"),
        ({"size": {**SIZE, "rows": 2**20, "columns": 2**20, "converters": 0}}, "cells; at most"),
        ({"size": {**SIZE, "rows": 0}}, "greater than or equal to 1"),
        ({"dead_cores": [4]}, "dead_cores: 4 of 4"),
        ({"dead_cores": [1, 1]}, "dead_cores: not in ascending order, or a number appears twice"),
        ({"dead_crossbars": [[0, 3]]}, "core 0, crossbar 3: there are 4 cores of 3 crossbars"),
        ({"dead_crossbars": [[1, 0], [0, 0]]}, "dead_crossbars: not in ascending order"),
        ({"arrays": [array(core=4)]}, "core 4, crossbar 0: there are 4 cores"),
        ({"arrays": [array(), array()]}, "arrays: not in ascending order"),
        ({"size": {**SIZE, "arrays": 1}, "arrays": [array(array=1)]}, "a crossbar has 1 array"),
        ({"arrays": [array(rows=[3])]}, "rows: 3 of 3"),
        ({"arrays": [array(columns=[5])]}, "columns: 5 of 5"),
        ({"arrays": [array(converters=[2])]}, "converters: 2 of 2"),
        ({"arrays": [array(off=[15])]}, "off: 15 of 15"),
        ({"arrays": [array(on=[2, 1])]}, "on: not in ascending order"),
        ({"arrays": [array(off=[2], on=[2])]}, "cell 2 is stuck at off and at on"),
        ({"arrays": [array(stuck=[2])]}, "no such field: 'stuck'"),
        ({"dead_link": [[0, 1]]}, "no such field: 'dead_link'; did you mean dead_links?"),
        ({"dead_links": [[0, 1]]}, "the size has no mesh_columns"),
        ({"size": MESH, "dead_links": [[1, 2]]}, "1 and 2 are no neighbours in a mesh of 4 cores in rows of 2"),
        ({"size": MESH, "dead_links": [[1, 0]]}, "1 and 0 are no neighbours"),
        ({"size": MESH, "dead_links": [[2, 4]]}, "2 and 4 are no neighbours"),
        ({"size": MESH, "dead_links": [[1, 3], [0, 1]]}, "dead_links: not in ascending order"),
        ({"version": 2}, "version"),
    ],
)
def test_broken_files(tmp_path: Path, change: dict[str, Any], message: str):
    (tmp_path / "chip.json").write_text(json.dumps(content(**change)))
    with pytest.raises(UserError, match=r"chip\.json: not a file this version can read") as caught:
        load_chip_file(tmp_path / "chip.json")
    assert message in str(caught.value)


def test_files_that_are_missing(tmp_path: Path):
    with pytest.raises(UserError, match="no such file; raptor arch defects writes one"):
        load_chip_file(tmp_path / "none.json")


def test_states_have_a_byte_for_each_cell():
    assert make().read_states(0, 0, 0).dtype == np.uint8
