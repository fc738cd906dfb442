"""Time, energy, bytes and memory of a program's parts: they add up to the totals of other counts."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import models
import raptor
from raptor.common.errors import UserError
from raptor.output import files
from raptor.target import isa
from tests.pipeline import conv_model, thesis_model
from tests.validator.simulate.programs import SETBW, lldi, mvmul, recv, send, sldi, write
from validator.profile import Profile, profile
from validator.profile.profile_results import ACTIVITY_KINDS, GLOBAL_MEMORY, Mesh
from validator.program.pimsim_program import read_program
from validator.simulate import builtin
from validator.simulate.simulation_report import SimulationReport

MAPPINGS = ("raptor", "rows")
XBAR = 32


@pytest.fixture(scope="module", params=MAPPINGS)
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet-18, compiled."""
    model = models.build("resnet18", seed=0, width=0.125, image_size=32)
    folder = tmp_path_factory.mktemp(request.param) / "out"
    program = raptor.compile(model, xbar=XBAR, cores=60, mapping=request.param)
    return program.save(folder, weight_format="npz")


@pytest.fixture(scope="module")
def found(out: Path) -> Profile:
    return profile(out)


@pytest.fixture(scope="module")
def simulated(out: Path) -> SimulationReport:
    return builtin.simulate(out, out / "arch.json")


def test_estimates_are_those_of_simulate(out: Path, found: Profile, simulated: SimulationReport):
    known = found.estimate
    assert known is not None
    assert known.latency_ns == simulated.latency_ns
    assert known.energy_pj == simulated.energy_parts_pj
    steady = builtin.simulate(out, out / "arch.json", mode="throughput", samples=known.samples)
    assert known.interval_ns == steady.interval_ns
    assert known.interval_energy_pj == steady.energy_parts_pj
    assert [c.use for c in found.cores if c.use] == list(simulated.cores)


def test_layers_add_up(found: Profile, simulated: SimulationReport):
    cores = simulated.cores
    assert sum(p.busy_ns or 0 for p in found.parts) == pytest.approx(
        sum(c.matrix_ns + c.vector_ns + c.transfer_ns for c in cores)
    )
    assert sum(p.waited_ns or 0 for p in found.parts) == pytest.approx(
        sum(c.wait_send_ns + c.wait_recv_ns + c.wait_token_ns for c in cores)
    )
    assert {p.name: p.critical_ns for p in found.parts if p.critical_ns} == pytest.approx(simulated.critical_path_ns)
    energy = sum(simulated.energy_parts_pj.values())
    assert sum(p.energy_pj or 0 for p in found.parts) == pytest.approx(energy - simulated.energy_parts_pj["static"])


def test_the_timeline_adds_up(found: Profile, simulated: SimulationReport):
    line = found.timeline
    assert line is not None
    assert line.cores == tuple(c.core for c in simulated.cores)
    columns = ("matrix_ns", "vector_ns", "transfer_ns", "wait_send_ns", "wait_recv_ns", "wait_token_ns")
    for kind, column in zip(range(len(ACTIVITY_KINDS)), columns, strict=True):
        spent = line.shares[kind].astype(float).sum(axis=1) * line.bin_ns
        np.testing.assert_allclose(spent, [getattr(c, column) for c in simulated.cores], rtol=1e-5, atol=1)
    assert line.shares.max() <= 1.00001  # one instruction at a time
    waits = line.shares[3:].sum(axis=0) > 0
    assert (line.partner[waits] >= 0).all()
    assert (line.partner[~waits] == -1).all()


def test_instructions_and_bytes_are_those_of_the_streams(out: Path, found: Profile):
    """Counted one by one, in plain Python."""
    streams = read_program(out).records
    sent: Counter[tuple[int, int]] = Counter()
    messages: Counter[tuple[int, int]] = Counter()
    for core, records in enumerate(streams):
        mix: Counter[str] = Counter()
        for record in records:
            name = isa.BY_OPCODE[int(record["opcode"])].name
            mix[name] += 1
            pair = {"send": (core, int(record["a"])), "ld": (GLOBAL_MEMORY, core), "st": (core, GLOBAL_MEMORY)}.get(
                name
            )
            if pair:
                sent[pair] += int(record["d"])
                messages[pair] += 1
        assert found.cores[core].instructions == mix
    assert {(f.source, f.to): f.bytes for f in found.traffic} == sent
    assert {(f.source, f.to): f.messages for f in found.traffic} == messages
    assert sum(p.moved_bytes for p in found.parts) == sum(n for pair, n in sent.items() if GLOBAL_MEMORY not in pair)
    assert sum(p.global_bytes for p in found.parts) == sum(n for pair, n in sent.items() if GLOBAL_MEMORY in pair)


def test_layers_are_those_of_the_compiler(out: Path, found: Profile):
    noted = json.loads((out / files.REPORT).read_bytes())["layers"]
    counted = {p.name: p for p in found.parts}
    assert set(counted) == {layer["node"] for layer in noted if layer["instructions"]}
    for layer in noted:
        if layer["instructions"]:
            # The compiler leaves out the prologue, which steps.json counts to the first step.
            mine = {name: n for name, n in counted[layer["node"]].instructions.items() if name != "setbw"}
            assert mine == layer["instructions"]
            assert list(counted[layer["node"]].cores) == layer["cores"]


def test_crossbars_are_those_of_the_compiler(out: Path, found: Profile):
    report = json.loads((out / files.REPORT).read_bytes())
    noted, filled = report["layers"], found.crossbars
    assert filled is not None
    # Some crossbars hold constants of a core, and no layer's weights.
    assert len(filled.fill) == report["xbars_used"] >= sum(layer["xbars"] for layer in noted)
    assert filled.products[np.unique(filled.core * 1000 + filled.group, return_index=True)[1]].sum() == sum(
        layer["instructions"].get("mvmul", 0) for layer in noted
    )
    used = [layer for layer in noted if layer["xbars"] and not layer["products_skipped"]]
    assert used
    for layer in used:
        # One that holds constants has one row of them at most.
        mine = filled.fill[(filled.part == found.part_names.index(layer["node"])) & (filled.fill > 1 / XBAR)]
        assert len(mine) == layer["xbars"]
        assert mine.mean() == pytest.approx(layer["utilisation"], abs=1e-4)


def test_local_memory_stays_within_what_the_compiler_laid_out(found: Profile):
    used = found.local_memory
    assert used is not None
    laid_out = np.array([found.cores[core].local_bytes or 0 for core in used.cores])
    assert (used.bytes.max(axis=1) <= laid_out).all()
    assert used.bytes.max() > 0.5 * laid_out.max()
    assert (used.bytes >= 0).all()


def test_local_memory_by_hand(tmp_path: Path):
    """32 bytes are written, copied to 64, and 16 bytes of the copy to 128: the rest is not read again."""
    copies = [{"op": "lmv", "rd": to, "rs1": to - 1, "len": n, "size": n} for to, n in ((2, 32), (3, 16))]
    out = write(tmp_path, [SETBW, sldi(1, 0), sldi(2, 64), sldi(3, 128), lldi(32), *copies])
    used = profile(out).local_memory
    assert used is not None
    steps = [int(used.bytes[0, k]) for k in range(used.bytes.shape[1])]
    # While bytes are copied both copies hold something; the last copy is never read.
    assert [value for k, value in enumerate(steps) if k == 0 or value != steps[k - 1]] == [0, 32, 48, 16]


def test_products_skipped_by_hand():
    """3x3 over 4x4 with a border of one: in each direction 3 + 4 + 3 positions of 12 lie inside, 100 of 144 in all."""
    program = raptor.compile(thesis_model(3, 3), xbar=3, xbars_per_core=5, cores=16)
    (layer,) = (x for x in program.report.layers if x.node == "conv")
    assert (layer.matrices, layer.replicas, layer.inputs) == (9, 1, ((1, 3, 4, 4),))
    assert layer.instructions["mvmul"] == 100
    assert layer.products_skipped == 44


def test_no_products_are_skipped_by_line():
    """Each of 8 lines is cut into blocks of two pixels of 8 channels; the border has no blocks."""
    model = conv_model((1, 8, 8, 8), 8, pads=(1, 1, 1, 1))
    (layer,) = raptor.compile(model, xbar=16, xbars_per_core=40, cores=1, mapping="rows").report.layers
    assert (layer.unfolding, layer.matrices, layer.replicas) == ("line 1x2", 1, 1)
    assert layer.products_skipped == 0
    assert layer.instructions["mvmul"] == 8 * 4


def test_hops_are_those_of_the_table(found: Profile):
    """The table has 2 ns a router, and one router more than hops."""
    between = [f for f in found.traffic if f.hops is not None]
    assert between
    assert [f.flit_ns for f in between] == [2 * (1 + (f.hops or 0)) for f in between]
    assert Mesh(3, 4, is_known=True).hops(1, 10) == 3


def foreign(out: Path, folder: Path) -> Path:
    """Copies the files that another compiler leaves: streams and config."""
    folder.mkdir()
    for path in [out / files.CONFIG, *out.glob("core_*.json")]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_streams_and_config_are_enough(out: Path, found: Profile, tmp_path: Path):
    bare = profile(foreign(out, tmp_path / "bare"))
    assert "no architecture" in bare.untimed
    assert bare.estimate is bare.timeline is bare.local_memory is bare.crossbars is None
    assert bare.part_kind == "instruction"
    assert {p.name: p.instructions[p.name] for p in bare.parts} == sum(
        (Counter(c.instructions) for c in found.cores), Counter()
    )
    assert [(f.source, f.to, f.bytes) for f in bare.traffic] == [(f.source, f.to, f.bytes) for f in found.traffic]
    assert all(f.flit_ns is None for f in bare.traffic)
    timed = profile(tmp_path / "bare", out / "arch.json")
    assert timed.estimate == found.estimate


def test_a_program_that_does_not_end_has_no_times(tmp_path: Path):
    out = write(tmp_path / "out", [SETBW, recv(1, 64), send(1, 64)], [SETBW, recv(0, 64), send(0, 64)])
    stuck = profile(out)
    assert "does not end" in stuck.untimed
    assert "deadlock" in stuck.untimed
    assert stuck.estimate is None
    assert sum(f.bytes for f in stuck.traffic) == 128


def test_groups_that_work_at_once_count_each(tmp_path: Path):
    work = [SETBW, *[sldi(1, 1024), sldi(2, 0), mvmul(0, 1), sldi(3, 8192), sldi(4, 4096), mvmul(1, 3, 4)] * 20]
    out = write(tmp_path / "out", work, groups=(1, 1), rob_size=4)
    found, simulated = profile(out), builtin.simulate(out, out / "arch.json")
    assert found.timeline is not None
    assert found.timeline.shares[0].max() > 1.5
    spent = found.timeline.shares[0].astype(float).sum() * found.timeline.bin_ns
    assert spent == pytest.approx(simulated.cores[0].matrix_ns, rel=1e-4)


def test_what_is_no_program_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"config\.json"):
        profile(tmp_path)
