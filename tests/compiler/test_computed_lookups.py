"""Rows of a table by computed ids: values, wrong ids, and defects that each level must find."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor.codegen import pimsim
from raptor.codegen.pimsim import CoreStream, InstructionStreams
from raptor.common.errors import CapacityError, UserError, VerifyError
from raptor.graph.evaluate import evaluate_graph
from raptor.spatial import SpatialGraph, verify_spatial
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy, TakeRows
from raptor.target import isa
from tests.compiler.computed_lookups import compiled, table, take_graph
from tests.pipeline import arch_file
from tests.tiny_models import Array
from tests.values import replace
from validator.checks.rule_subject import CheckSubject
from validator.checks.rules.streams import sld
from validator.engines import compiled_engine, machine, reference_engine
from validator.errors import IdError, ProgramError
from validator.execution.run import prepare_machine, run_program
from validator.load.output_directory import load_output
from validator.load.stream_check import check_program
from validator.program.lookup_bounds import find_row_counts
from validator.simulate import builtin
from validator.simulate.cycle import simulated_chip


def saved(folder: Path, graph: Any, **options: Any) -> Path:
    program, _ = compiled(graph, **options)
    return program.save(folder / "out", stream_format="pim", weight_format="npz")


def some_ids(rows: int, *shape: int) -> Array:
    return np.random.default_rng(shape).integers(0, rows, shape).astype(np.float32)


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(
    ("mapping", "rows", "channels", "ids", "axis", "bits"),
    [
        ("rows", 7, 9, (2, 5), -1, 8),
        ("rows", 300, 4, (3,), 0, 16),
        ("raptor", 1, 1, (2, 3, 2), 1, 32),
        ("raptor", 12, 17, (1, 6), 1, 16),
        ("pixelwise", 5, 6, (2, 5), -1, 8),
    ],
)
def test_rows(tmp_path: Path, mapping: str, rows: int, channels: int, ids: Any, axis: int, bits: int, computed: bool):
    """Tiles of ids, one id of the last row and one of the first; a table wider than a tile."""
    graph = take_graph(table(rows + computed, channels), ids, axis=axis, computed=computed)
    given = some_ids(rows, *ids)
    given.flat[0], given.flat[-1] = rows - 1, 0
    wanted = evaluate_graph(graph, {"ids": given})
    program = load_output(saved(tmp_path, graph, mapping=mapping, bits=bits))
    for engine_name in ("numba", "reference"):
        found = run_program(program, {"ids": given}, engine=engine_name, probes=True)
        for name, values in found.outputs.items():
            np.testing.assert_array_equal(values, wanted[name])


def test_equal_ids_share_a_tile_and_two_tables_do_not():
    """The graph's evaluation is the judge of two tables of one size, with ids of one tensor."""
    graph = take_graph(table(6, 5), (4,))
    second = replace(graph.nodes[0], operator=replace(graph.nodes[0].operator, table=table(6, 5, 1)), output="other")
    tensors = {**graph.tensors, "other": replace(graph.tensors["rows"], name="other")}
    both = replace(graph, tensors=tensors, nodes=(*graph.nodes, second), outputs=("y", "rows", "other"))
    program, _ = compiled(both)
    ids = np.array([5, 0, 5, 3], np.float32)
    found = program.run({"ids": ids})
    for name, values in evaluate_graph(both, {"ids": ids}).items():
        if name in found:
            np.testing.assert_array_equal(found[name], values)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    graph = take_graph(table(11, 9), (2, 5))
    return {m: saved(tmp_path_factory.mktemp(m), graph, mapping=m) for m in ("rows", "pixelwise")}


@pytest.mark.parametrize("mapping", ["rows", "pixelwise"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(11, "11"), (-1, "-1"), (2.5, "2.5"), (np.nan, "nan"), (np.inf, "inf"), (1e30, "1.000000015e+30")],
)
def test_an_id_that_is_no_row(out: dict[str, Path], mapping: str, value: float, shown: str):
    program, ids = load_output(out[mapping]), some_ids(11, 2, 5)
    ids[1, 2] = value
    message = rf"look, token 7: the id is {shown.replace('+', '[+]')}, but the rows of the table are 0 to 10$"
    for engine_name in ("numba", "reference"):
        with pytest.raises(IdError, match=message):
            run_program(program, {"ids": ids}, engine=engine_name)
    faults = []
    for execute in (compiled_engine.execute, reference_engine.execute):
        state = prepare_machine(program, {"ids": ids})
        faults.append((execute(state, block=True, max_steps=10**6), state.registers.tolist()))
    assert faults[0] == faults[1]
    assert isinstance(machine.explain_fault(state, faults[0][0]), IdError)


def test_the_token_is_not_named_without_the_steps(tmp_path: Path):
    folder = saved(tmp_path, take_graph(table(3, 2), (4,)))
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"]["steps.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IdError, match=r"\): the id is 3, but"):
        run_program(load_output(folder), {"ids": np.array([0, 1, 2, 3], np.float32)})


# Defects planted in SpatialIR.


def with_take(graph: SpatialGraph, change: Callable[[TakeRows[Any]], TakeRows[Any]]) -> SpatialGraph:
    def changed(compute: Compute) -> Compute:
        return replace(compute, body=tuple(change(o) if isinstance(o, TakeRows) else o for o in compute.body))

    return replace(graph, computes=tuple(map(changed, graph.computes)))


def _rolled(op: TakeRows[Any]) -> TakeRows[Any]:
    return replace(op, table=replace(op.table, values=np.roll(op.table.values, op.table.channels)))


SPATIAL = {
    "row off by one": (_rolled, "not channels"),
    "id of another token": (lambda op: replace(op, places=op.places[::-1]), "for pixel 0 that another id chooses"),
    "an id too few": (lambda op: replace(op, places=op.places[1:]), "takes 9 rows"),
    "an id outside of its tile": (lambda op: replace(op, places=op.places + 99), "for pixel 0 that"),
}


@pytest.mark.parametrize("name", SPATIAL)
def test_defects_in_tiles(name: str):
    change, message = SPATIAL[name]
    program, driver = compiled(take_graph(table(11, 3), (2, 5)), mapping="raptor")
    assert program.artifacts is not None
    graph, arch = driver.results["partition"].graph, program.artifacts.arch
    verify_spatial(graph, arch)
    with pytest.raises(VerifyError, match=message):
        verify_spatial(with_take(graph, change), arch)


def through_a_copy(graph: SpatialGraph, elements: int, first: int) -> SpatialGraph:
    """Lets each operation that takes rows read its first ids from a copy of them, as from a relay."""
    found: list[Compute] = []
    for compute in graph.computes:
        for op in compute.body:
            if isinstance(op, TakeRows):
                ids = op.ids[0]
                own = replace(ids, name=f"{ids.name}.kept")
                copy = Copy(own, ids, first, 0, elements)
                found.append(replace(compute, matrices=(), body=(copy,), results=(own,)))
                op = replace(op, ids=(own, *op.ids[1:]))
                compute = replace(compute, body=tuple(op if isinstance(o, TakeRows) else o for o in compute.body))
        found.append(compute)
    return replace(graph, computes=tuple(found))


def test_ids_may_be_copied():
    program, driver = compiled(take_graph(table(11, 3), (2, 5)), mapping="raptor")
    assert program.artifacts is not None
    graph, arch = driver.results["partition"].graph, program.artifacts.arch
    count = next(op.ids[0].elements for c in graph.computes for op in c.body if isinstance(op, TakeRows))
    verify_spatial(through_a_copy(graph, count, 0), arch)
    with pytest.raises(VerifyError, match="that another id chooses"):
        verify_spatial(through_a_copy(graph, count - 1, 0), arch)
    with pytest.raises(VerifyError, match="that another id chooses"):
        verify_spatial(through_a_copy(graph, count - 1, 1), arch)


# Defects planted in a stream.


def changed(streams: InstructionStreams, name: str, field: str, add: int, k: int = 3) -> InstructionStreams:
    """Adds a number to a field of instruction number `k` of a name on core 0."""
    records = streams.cores[0].records.copy()
    at = np.flatnonzero(records["opcode"] == isa.OPCODE[name])[k]
    records[field][at] = int(records[field][at]) + add
    return InstructionStreams({**streams.cores, 0: CoreStream(records, streams.cores[0].step_ends)})


STREAMS = {
    "row off by one": ("saddi", "a", 9, "no table of memory.json"),
    "between two rows": ("saddi", "a", 1, "no table of memory.json"),
    "stride of another table": ("smuli", "a", 3, "no table of memory.json"),
    "more than a row": ("ld", "d", 1, "no table of memory.json"),
    "id of another token": ("sld", "c", 1, None),
    "place of another token": ("ld", "c", 9, None),
    "register of another value": ("smuli", "rs1", 1, "where only smuli takes it|no smuli uses"),
    "address of another load": ("ld", "rs1", -6, "of its address only|no ld uses"),
    "low word alone": ("saddi", "rs1", 1, "no saddi uses|where only"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_defects_in_streams(name: str):
    """`verify_streams` finds them all; the validator and `check` those that can reach other bytes than the table's."""
    instruction, field, add, refusal = STREAMS[name]
    program, driver = compiled(take_graph(table(11, 9), (2, 5)), xbar=(16, 16), mapping="raptor")
    assert program.artifacts is not None
    streams, pim = driver.results["generate"], driver.results["allocate"]
    arch, memory = program.artifacts.arch, program.artifacts.memory
    pimsim.verify_streams(streams, pim, arch)
    wrong = changed(streams, instruction, field, add)
    with pytest.raises(VerifyError, match="stream of core 0"):
        pimsim.verify_streams(wrong, pim, arch)
    records = wrong.cores[0].records
    subject = CheckSubject([records], [()], [True], memory=memory)
    if refusal is None:
        assert len(find_row_counts(records, memory.tables)) == 10
        assert not list(sld(subject))
    else:
        (hit,) = sld(subject)
        assert any(part in hit.fact for part in refusal.split("|"))


def test_a_table_that_is_not_declared(tmp_path: Path):
    folder = saved(tmp_path, take_graph(table(3, 2), (4,)))
    program = load_output(folder)
    bare = replace(program, memory=program.memory.model_copy(update={"tables": ()}))
    arch = simulated_chip.read_simulated_chip(folder / "arch.json").target
    check_program(program, arch)
    with pytest.raises(ProgramError, match=r"no table of memory\.json has its rows there"):
        check_program(bare, arch)
    cores = len(program.streams)
    hits = [*sld(CheckSubject(program.streams, [()] * cores, [True] * cores))]
    assert hits
    assert {hit.fact for hit in hits} == {""}


def test_a_table_outside_of_the_constants(tmp_path: Path):
    folder = saved(tmp_path, take_graph(table(3, 2), (4,)))
    memory = json.loads((folder / "memory.json").read_text())
    memory["tables"][0]["rows"] = 4
    (folder / "memory.json").write_text(json.dumps(memory))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["memory.json"]["size_bytes"] = (folder / "memory.json").stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="the table of 4 rows at 4 is not among the constants"):
        load_output(folder, check_hashes=False)


def test_a_table_beyond_one_register(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("raptor.pim.global_memory.REGISTER_BYTES", 30)
    with pytest.raises(CapacityError, match=r"y|rows"):
        compiled(take_graph(table(10, 3), (4,)))


POWERS = {"reg_file_read": 1.25, "reg_file_write": 2.5, "scalar": 3.75, "inst_fetch": 0.5, "inst_decode": 4.5}
MEASURED = {
    (1, False): (7028.0, 1029251.5),
    (1, True): (7985.0, 1170568.25),
    (8, False): (7028.0, 1029542.0),
    (8, True): (7973.0, 1169219.0),
}
"""Figures of pimsim-nn (commit f7446df) for the same files, ns and pJ, by `rob_size` and whether ids are computed."""


@pytest.mark.parametrize(("rob", "computed"), MEASURED)
def test_time_and_energy_are_those_of_the_simulator(tmp_path: Path, rob: int, computed: bool):
    folder = with_powers(tmp_path, rob, computed)
    report = builtin.simulate(folder, folder / "arch.json")
    assert (report.latency_ns, report.energy_pj) == pytest.approx(MEASURED[rob, computed], rel=1e-9)


def with_powers(folder: Path, rob: int, computed: bool) -> Path:
    """A program for a chip that spends energy on each register and each scalar instruction."""
    path = arch_file(folder, rob_size=rob)
    arch = json.loads(path.read_text())
    arch["chip_config"]["core_config"] |= {f"{name}_dynamic_power": mw for name, mw in POWERS.items()}
    path.write_text(json.dumps(arch))
    program, _ = compiled(take_graph(table(300, 140), (2, 5), computed=computed), arch=path, xbar=None, cores=None)
    return program.save(folder / "out")
