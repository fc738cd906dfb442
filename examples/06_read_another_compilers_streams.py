"""Check, mend and simulate a program that another compiler wrote.

The program below is in the form of PIMCOMP-NN (a single gzipped JSON file) and has its habits, written by hand: core 0
computes a product and sends it, core 1 multiplies what it receives. docs/how-to/pimcomp-example.md does with
PIMCOMP-NN's ResNet-18 what is done here with two cores.

    python examples/06_read_another_compilers_streams.py
"""

import copy
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from raptor.common.errors import UserError
from validator.checks import check
from validator.simulate.builtin import simulate

NONE = {"offset_select": 0, "offset_value": 0}
SETBW = {"op": "setbw", "ibiw": 8, "obiw": 8}
PROGRAM: dict[str, Any] = {
    "config": {"core_cnt": 2},  # no array_group_map
    "core0": [
        SETBW,
        {"op": "sldi", "rd": 0, "imm": 0},
        {"op": "sldi", "rd": 1, "imm": 128},
        {"op": "lldi", "rd": 0, "imm": 0.0, "len": 128, "offset": NONE},  # a fraction, which the simulator cuts
        {"op": "mvmul", "rd": 1, "rs1": 0, "mbiw": 8, "relu": 0, "group": 1},  # the number of crossbars, not an index
        {"op": "send", "rd": 1, "rs1": 1, "core": 1, "size": 128, "offset": NONE},
    ],
    "core1": [  # no setbw
        {"op": "sldi", "rd": 0, "imm": 0},
        {"op": "sldi", "rd": 1, "imm": 128},
        {"op": "recv", "rd": 0, "core": 0, "size": 128, "offset": NONE},
        {"op": "mvmul", "rd": 1, "rs1": 0, "mbiw": 8, "relu": 0, "group": 1},
    ],
}


def made_loadable(program: dict[str, Any], *, setbw: bool) -> dict[str, Any]:
    """Adds the map of array groups that pimsim-nn needs, and makes numbers whole. `setbw`: on every core."""
    program = copy.deepcopy(program)
    groups = program["config"]["array_group_map"] = {}
    for core in range(program["config"]["core_cnt"]):
        stream = program[f"core{core}"]
        counts = sorted({i["group"] for i in stream if i["op"] == "mvmul"})
        for i in stream:
            if i["op"] == "mvmul":
                i["group"] = counts.index(i["group"])
            if "imm" in i:
                i["imm"] = int(i["imm"])
        if setbw and stream[0]["op"] != "setbw":
            stream.insert(0, SETBW)
        groups[f"core{core}"] = counts
    return program


def look_at(title: str, program: dict[str, Any], path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(program).encode()))
    print(title)
    for finding in check(path, "bench"):
        print(f"  {finding.severity} {finding.rule}, core {finding.core} at {finding.pc}: {finding.message}")
    try:
        found = simulate(path, "bench")
    except UserError as error:
        print(f"  not simulated: {str(error).partition(': ')[2]}\n")
        return
    print(f"  {found.latency_ns:.0f} ns, {found.energy_pj:.0f} pJ\n")


with tempfile.TemporaryDirectory() as scratch:
    file = Path(scratch) / "SimulationInfo.gz"
    look_at("as written", PROGRAM, file)
    look_at("made loadable", made_loadable(PROGRAM, setbw=False), file)
    look_at("and setbw on every core", made_loadable(PROGRAM, setbw=True), file)
