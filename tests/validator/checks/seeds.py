"""A small sound program for two cores, as files that a defect can be put into."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raptor.target import encoding
from raptor.target.isa import Records
from tests.validator.builder import op, stream

Instruction = dict[str, Any]


def i(name: str, **operands: Any) -> Instruction:
    """An instruction as JSON; `at=(value, select)` stands for an offset."""
    offset = operands.pop("at", None)
    extra = {"offset": {"offset_value": offset[0], "offset_select": offset[1]}} if offset else {}
    return {"op": name, **operands, **extra}


def sldi(rd: int, imm: int) -> Instruction:
    return i("sldi", rd=rd, imm=imm)


def fill(at: int, size: int = 64, register: int = 1) -> list[Instruction]:
    return [sldi(register, at), i("lldi", rd=register, imm=0, len=size)]


def product(group: int = 0, out: int = 600, source: int = 100) -> list[Instruction]:
    return [sldi(1, out), sldi(2, source), i("mvmul", rd=1, rs1=2, mbiw=8, relu=0, group=group)]


def send(core: int, size: int = 64, at: int = 100) -> list[Instruction]:
    return [sldi(1, at), i("send", rd=1, rs1=1, core=core, size=size)]


def recv(core: int, size: int = 64, at: int = 100) -> list[Instruction]:
    return [sldi(1, at), i("recv", rd=1, core=core, size=size)]


SETBW = i("setbw", ibiw=8, obiw=8)


def sound() -> list[list[Instruction]]:
    """Core 0 fills, multiplies and sends; core 1 receives, adds and stores."""
    add = [sldi(2, 400), i("vvadd", rd=2, rs1=1, rs2=1, len=64)]
    store = [sldi(4, 0), sldi(5, 0), sldi(6, 400), i("st", rd=4, rs1=6, size=64)]
    return [[SETBW, *fill(100, 128), *product(), *send(1)], [SETBW, *recv(0), *add, *store]]


def network(cores: int) -> dict[str, dict[str, dict[str, int]]]:
    row = {str(k): {str(j): 4 for j in [*range(cores), -10] if j != k} for k in [*range(cores), -10]}
    return {"latency": row, "energy": {src: dict(dst) for src, dst in row.items()}}


def arch(cores: int = 2) -> dict[str, Any]:
    memory = {"memory_size": 2**20}
    core = {"matrix_config": {"xbar_array_count": 4, "cell_precision": 8}, "local_memory_config": dict(memory)}
    chip = {
        "core_cnt": cores,
        "core_config": core,
        "global_memory_config": dict(memory),
        "network_config": {"layout": [1, cores], "net_config_file_path": "network.json"},
    }
    return {"chip_config": chip, "sim_config": {"sim_mode": 1, "latency_timeout_ms": 10}}


@dataclass
class Seed:
    """The files of a program; change what should be wrong, then `write`."""

    cores: list[list[Instruction]] = field(default_factory=sound)
    groups: dict[str, Any] = field(default_factory=lambda: {"core0": [1], "core1": []})
    arch: dict[str, Any] | None = field(default_factory=arch)
    network: dict[str, Any] | None = None
    extra: dict[str, str] = field(default_factory=dict)
    pim: dict[int, Records] = field(default_factory=dict)

    def core(self) -> dict[str, Any]:
        assert self.arch is not None
        return self.arch["chip_config"]["core_config"]

    def matrix(self) -> dict[str, Any]:
        return self.core()["matrix_config"]

    def write(self, folder: Path) -> Path:
        config = {"core_cnt": len(self.cores), "array_group_map": self.groups}
        table = network(len(self.cores)) if self.network is None else self.network
        texts = {"config.json": config, "network.json": table}
        texts |= {f"core_{k}.json": c for k, c in enumerate(self.cores) if k not in self.pim}
        if self.arch is not None:
            texts["arch.json"] = self.arch
        for name, value in texts.items():
            (folder / name).write_text(json.dumps(value))
        for name, text in self.extra.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        for core, records in self.pim.items():
            (folder / f"core_{core}.pim").write_bytes(encoding.encode_pim(records))
        return folder

    def single(self) -> dict[str, Any]:
        """The single-file form."""
        config = {"core_cnt": len(self.cores), "array_group_map": self.groups}
        return {"config": config, **{f"core{k}": c for k, c in enumerate(self.cores)}}


__all__ = ["Seed", "fill", "i", "op", "product", "recv", "send", "sldi", "sound", "stream"]
