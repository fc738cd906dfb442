"""An architecture file is read in one way, whoever reads it: bounded, in UTF-8, with one message for each fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raptor.common.errors import UserError
from raptor.target import arch
from validator.checks.arch_file import read_chip
from validator.simulate.cycle.simulated_chip import read_simulated_chip

READERS = [arch.load, read_simulated_chip, read_chip]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b" " * 2**20 + b"{}", "more than the 1048576 bytes expected"),
        (b'{"chip_config": "\xff"}', "not a JSON file: 'utf-8' codec"),
        (b"{", "not a JSON file"),
        (b"[" * 100_000, "not a JSON file"),
        (b"[]", "expected an object with chip_config"),
    ],
)
def test_what_is_no_architecture_file(read: Callable[[Path], object], content: bytes, fault: str, tmp_path: Path):
    path = tmp_path / "arch.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(f"architecture {path}: {fault}")


@pytest.mark.parametrize("read", READERS)
def test_a_file_in_utf_8(read: Callable[[Path], Any], tmp_path: Path):
    """The locale may have another encoding."""
    raw = json.loads(arch.arch_json(arch.load("bench", cores=4)))
    del raw["chip_config"]["network_config"]["net_config_file_path"]
    raw["chip_config"]["network_config"]["bus_topology"] = "Gitter, größer"
    path = tmp_path / "arch.json"
    path.write_bytes(json.dumps(raw, ensure_ascii=False).encode())
    found = read(path)
    target = found if isinstance(found, arch.Target) else found.target
    assert target.network.topology == "Gitter, größer"
