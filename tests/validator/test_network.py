"""Network tables: from a file by rows, and computed for a preset."""

import json
import tracemalloc
from pathlib import Path

import pytest

from raptor import arch as architectures
from raptor.errors import UserError
from validator.network import KINDS, FileTable, MeshTable

PARTS = ("0", "1", "8", "11", "12", "-10", "-9")


@pytest.mark.parametrize("cores", [1, 9, 12])
def test_file_and_mesh_are_the_table(cores: int, tmp_path: Path) -> None:
    arch = architectures.load(cores=cores)
    path = tmp_path / "network.json"
    path.write_bytes(b"".join(architectures.write_network(arch)))
    table = architectures.network_table(arch)
    for source in PARTS:
        for to in PARTS:
            for kind in KINDS:
                wanted = table[kind].get(source, {}).get(to)
                assert FileTable(path).cost(kind, source, to) == MeshTable(arch.file).cost(kind, source, to) == wanted


def test_4000_cores_need_little_memory() -> None:
    tracemalloc.start()
    table = MeshTable(architectures.load(cores=4000).file)
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
        ('{"latency": {"0": {"1": }}, "energy": {}}', "latency from 0: "),
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
