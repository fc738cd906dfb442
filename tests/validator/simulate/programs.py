"""Programs by hand on the chip of docs/developers/target.md's tables: memory beats of 64 bytes, read 20 ns, write 30
ns."""

import json
from pathlib import Path
from typing import Any

from validator.program.pimsim_program import read_program
from validator.simulate.cycle import cycle_model, simulated_chip
from validator.simulate.cycle.cycle_model import CycleModel, CycleRun

Stream = list[dict[str, Any]]

SETBW = {"op": "setbw", "ibiw": 8, "obiw": 8}
MESH = {str(a): {str(b): 2 + 2 * abs(a - b) for b in (*range(8),) if a != b} | {"-10": 15} for a in range(8)}


def arch(**core: Any) -> dict[str, Any]:
    """The base chip; keywords replace fields of core_config."""
    matrix = {
        "xbar_array_count": 64,
        "xbar_size": [128, 128],
        "cell_precision": 2,
        "period": 1,
        "xbar_latency": 7.0,
        "xbar_read_power": 22.24,
        "adc_count": 16,
        "adc_latency_cycle": 20,
        "adc_dynamic_power": 1.135,
    }
    local = {"data_width": 64, "read_latency_cycle": 20, "write_latency_cycle": 30}
    config = {"vector_width": 32, "vector_latency_cycle": 4, "matrix_config": matrix, "local_memory_config": local}
    return {
        "chip_config": {
            "core_cnt": 8,
            "core_config": config | core,
            "global_memory_config": {"data_width": 32, "read_latency_cycle": 40, "write_latency_cycle": 50},
            "network_config": {"bus_width": 32, "layout": [1, 8], "net_config_file_path": "network.json"},
        }
    }


def write(folder: Path, *streams: Stream, groups: tuple[int, ...] = (1,), **core: Any) -> Path:
    """A program directory; every core has array groups of `groups` crossbars."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"core{i}" for i in range(len(streams))]
    files: dict[str, Any] = {
        "config.json": {"core_cnt": len(streams), "array_group_map": dict.fromkeys(names, groups)},
        "arch.json": arch(**core),
        "network.json": {"latency": MESH, "energy": {a: dict.fromkeys(row, 46) for a, row in MESH.items()}},
    }
    files |= {f"core_{i}.json": stream for i, stream in enumerate(streams)}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    return folder


def load(folder: Path) -> CycleModel:
    return cycle_model.build_cycle_model(read_program(folder), simulated_chip.read_simulated_chip(folder / "arch.json"))


def run(folder: Path, *streams: Stream, groups: tuple[int, ...] = (1,), **core: Any) -> CycleRun:
    """Simulates streams written to `folder`."""
    return cycle_model.run_cycle_model(load(write(folder, *streams, groups=groups, **core)))


def res(run: CycleRun, pc: int) -> int:
    """ns from entering the reorder buffer to completion, of an instruction of the first core."""
    return int(run.end[pc] - run.start[pc]) // 1000


def sldi(rd: int, imm: int) -> dict[str, Any]:
    return {"op": "sldi", "rd": rd, "imm": imm}


def lldi(size: int) -> dict[str, Any]:
    return {"op": "lldi", "rd": 1, "imm": 0, "len": size}


def mvmul(group: int = 0, rd: int = 1, rs1: int = 2) -> dict[str, Any]:
    return {"op": "mvmul", "rd": rd, "rs1": rs1, "mbiw": 8, "group": group}


def send(core: int, size: int) -> dict[str, Any]:
    return {"op": "send", "rd": 1, "rs1": 1, "core": core, "size": size}


def recv(core: int, size: int) -> dict[str, Any]:
    return {"op": "recv", "rd": 1, "core": core, "size": size}
