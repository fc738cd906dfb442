"""Network tables: from a file by rows, and computed for a preset."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from raptor.common.errors import UserError
from raptor.target import arch as architectures
from validator.program.network_table import COST_KINDS, FileTable, MeshTable
from validator.simulate.cycle import simulated_chip

PARTS = ("0", "1", "8", "11", "12", "-10", "-9")


@pytest.mark.parametrize("cores", [1, 9, 12])
def test_file_and_mesh_are_the_table(cores: int, tmp_path: Path) -> None:
    arch = architectures.load(cores=cores)
    path = tmp_path / "network.json"
    path.write_bytes(b"".join(architectures.write_network(arch)))
    table = architectures.make_mesh_table(arch)
    for source in PARTS:
        for to in PARTS:
            for kind in COST_KINDS:
                wanted = table[kind].get(source, {}).get(to)
                assert FileTable(path).cost(kind, source, to) == MeshTable(arch).cost(kind, source, to) == wanted


def test_4000_cores_need_little_memory() -> None:
    tracemalloc.start()
    table = MeshTable(architectures.load(cores=4000))
    assert all((table.cost("latency", str(k), str(k + 1)) or 0) >= 4 for k in range(3999))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ('{"latency": {}}', "energy should be an object"),
        ('{"latency": [], "energy": {}}', "latency should be an object"),
        ('{"latency": {"0": [1]}, "energy": {}}', "latency from 0: expected an object"),
        ('{"latency": {"0": {"1": }}, "energy": {}}', r"expected a JSON object: .* \(byte 24\)"),
        ('{"latency": {"0": {"1": "x"}}, "energy": {}}', "latency from 0 to 1: expected a number"),
        ('{"latency": {"0": {"1": {}}}, "energy": {}}', "latency from 0 to 1: expected a number"),
    ],
)
def test_what_is_no_table(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"network\.json: .*{message}"):
        FileTable(path).cost("latency", "0", "1")
    with pytest.raises(UserError, match="No such file"):
        FileTable(tmp_path / "missing.json")


def test_only_rows_asked_for_are_read(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    row = {"0": {"1": 2.5}, "1": "not an object"}
    path.write_text(json.dumps({"latency": row, "energy": {"0": {}}}))
    table = FileTable(path)
    assert table.cost("latency", "0", "1") == 2.5
    assert table.cost("energy", "0", "1") is None
    assert table.cost("latency", "7", "1") is None


def test_the_simulator_keeps_the_pairs_that_talk() -> None:
    """A table of all pairs of 4000 cores would take 270 MB."""
    arch = architectures.load(cores=4000)
    cores = np.arange(0, 4000, 2)
    pairs = np.array([[0, 1], [0, 2000], [5, 0], [5, 1999], [1999, 2000]])
    network = simulated_chip.look_up_flit_costs(
        simulated_chip.SimulatedChip(arch, MeshTable(arch), "bench", ()), cores, pairs
    )
    kept = (network.first, network.destination, network.latency_ns, network.energy_pj, network.is_missing)
    assert sum(array.nbytes for array in kept) < 20_000
    for source, to in pairs.tolist():
        ends = [-10 if end == 2000 else int(cores[end]) for end in (source, to)]
        latency, energy = architectures.mesh_pair_cost(arch, *ends) or (0.0, 0.0)
        assert network.flit_ns(source, to) == latency
        assert energy in network.energy_pj


def test_a_pair_that_the_table_lacks(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text('{"latency": {"0": {"1": 3}}, "energy": {"0": {"1": 4}}}')
    target = simulated_chip.SimulatedChip(architectures.load(cores=4), FileTable(path), "bench", ())
    network = simulated_chip.look_up_flit_costs(target, np.arange(2), np.array([[0, 1], [1, 0]]))
    assert (network.flit_ns(0, 1), network.flit_ns(1, 0)) == (3.0, None)
    assert network.latency_ns.tolist() == [3.0, 0.0]
    assert network.is_missing.tolist() == [False, True]
