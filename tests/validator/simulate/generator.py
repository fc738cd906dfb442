"""Random programs and chips, for comparing the cycle model with pimsim-nn.

`random_case(seed)` is a pure function of its seed. Programs cannot deadlock: their messages are drawn one after another
and put at the end of both streams. Changing anything here invalidates the figures under `data/`.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MEMORY = -10
SCALARS = ("sldi", "sadd", "ssub", "smul", "saddi", "smuli")
TWO = ("vvadd", "vvsub", "vvmul", "vvdmul", "vvmax", "vvsll", "vvsra")
ONE = ("vrelu", "vtanh", "vsigm")
WITH_REGISTER = ("vavg", "vmv", "vrsu", "vrsl")
INPUT_BITS = (1, 4, 7, 8, 9, 16, 17, 24, 31, 32)
OUTPUT_BITS = (1, 8, 12, 16, 20, 24, 32)

Instruction = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A program and a chip, as the simulator reads them."""

    config: dict[str, Any]
    streams: list[list[Instruction]]
    arch: dict[str, Any]
    network: dict[str, Any]


def random_case(seed: int, *, mode: int = 1) -> Case:
    """`mode`: 1 latency, 0 throughput (then without sync and wait, whose producers run ahead)."""
    draw = random.Random(seed)
    cores = draw.choice((1, 1, 2, 2, 3, 4, 5, 6, 7, 8))
    matrix = _matrix(draw)
    groups = [[draw.randint(1, 4) for _ in range(draw.randint(1, 4))] for _ in range(cores)]
    matrix["xbar_array_count"] = max(map(sum, groups))
    arch = _arch(draw, cores, matrix)
    config = {"core_cnt": cores, "array_group_map": {f"core{i}": g for i, g in enumerate(groups)}}
    streams = _Streams(draw, groups, arch["chip_config"]["core_config"]["rob_size"], tokens=mode == 1).build()
    return Case(config, streams, arch, _network(draw, cores))


def widths_case(seed: int) -> Case:
    """`random_case(seed)` with many changes of width, as in programs with integers, and a reorder buffer up to 16."""
    case, draw = random_case(seed), random.Random(f"widths {seed}")
    case.arch["chip_config"]["core_config"]["rob_size"] = draw.choice((1, 2, 3, 4, 6, 8, 12, 16))
    return replace(case, streams=[list(_with_widths(draw, stream)) for stream in case.streams])


def _with_widths(draw: random.Random, stream: Sequence[Instruction]) -> Iterator[Instruction]:
    for instruction in stream:
        if draw.random() < 0.4:
            yield {"op": "setbw", "ibiw": draw.choice(INPUT_BITS), "obiw": draw.choice(OUTPUT_BITS)}
        yield instruction


def write(case: Case, folder: Path, *, sim_mode: int = 1, sim_time_ms: float = 1.0) -> None:
    """Writes the program directory with arch.json and network.json in it."""
    folder.mkdir(parents=True, exist_ok=True)
    sim = {"sim_mode": sim_mode, "sim_time": sim_time_ms, "latency_timeout_ms": 50.0, "report_verbose_level": 0}
    files: dict[str, Any] = {"config.json": case.config, "network.json": case.network}
    files["arch.json"] = {**case.arch, "sim_config": sim}
    files |= {f"core_{i}.json": stream for i, stream in enumerate(case.streams)}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))


def _matrix(draw: random.Random) -> dict[str, Any]:
    rows, cols = draw.choice((16, 32, 64, 128)), draw.choice((16, 32, 64, 128))
    return {
        "xbar_size": [rows, cols],
        "cell_precision": draw.choice((1, 2, 4, 8)),
        "period": draw.choice((1.0, 1.0, 0.78125, 2.0)),
        "pipeline_mode": draw.random() < 0.7,
        "dac_resolution": draw.choice((1, 1, 2, 4)),
        "dac_count": draw.choice((rows, rows, rows // 2)),
        "dac_latency_cycle": draw.randint(0, 3),
        "dac_dynamic_power": draw.choice((0, 0.7)),
        "xbar_latency": draw.choice((7.0, 30.0, 12.5)),
        "xbar_read_power": draw.choice((0, 22.24)),
        "sample_hold_latency_cycle": draw.randint(0, 2),
        "sample_hold_dynamic_power": draw.choice((0, 0.01)),
        "adc_count": draw.choice((1, 4, 16, 5)),
        "adc_latency_cycle": draw.choice((1, 3, 20)),
        "adc_dynamic_power": draw.choice((0, 1.135)),
        "shift_adder_latency_cycle": draw.randint(0, 2),
        "shift_adder_dynamic_power": draw.choice((0, 0.3)),
        "output_buffer_latency_cycle": draw.randint(0, 2),
        "output_buffer_dynamic_power": draw.choice((0, 0.4)),
    }


def _memory(draw: random.Random) -> dict[str, Any]:
    return {
        "data_width": draw.choice((8, 16, 32, 64, 100)),
        "period": draw.choice((1, 1, 1, 0.5, 2, 1.25)),
        "read_latency_cycle": draw.choice((0, 1, 8, 20, 40)),
        "write_latency_cycle": draw.choice((0, 1, 10, 30, 50)),
        "static_power": draw.choice((0, 1, 2.5)),
        "read_dynamic_energy": draw.choice((0, 1.5)),
        "write_dynamic_energy": draw.choice((0, 2.5)),
    }


def _arch(draw: random.Random, cores: int, matrix: dict[str, Any]) -> dict[str, Any]:
    core: dict[str, Any] = {
        "period": draw.choice((1, 1, 1, 1, 0.5, 1.5, 2, 3)),
        "rob_size": draw.choice((1, 1, 2, 3, 4, 5, 6, 8)),
        "vector_width": draw.choice((1, 16, 32)),
        "vector_latency_cycle": draw.choice((0, 1, 4, 8)),
        "matrix_config": matrix,
        "local_memory_config": _memory(draw),
    }
    powers = ("inst_fetch", "inst_decode", "inst_decode_offset", "reg_file", "scalar", "transfer")
    core |= {f"{name}_static_power": draw.choice((0, 0.2)) for name in powers}
    core |= {f"vector_{name}_dynamic_energy": draw.choice((0, 0.3)) for name in ("alu", "reg_read", "reg_write")}
    core |= {f"vector_{name}_static_power": draw.choice((0, 0.1)) for name in ("alu", "reg")}
    if draw.random() < 0.5:
        names = ("inst_fetch", "inst_decode", "inst_decode_offset", "reg_file_read", "reg_file_write", "scalar")
        core |= {f"{name}_dynamic_power": draw.choice((0, 0.5, 1.0)) for name in names}
    chip = {
        "core_cnt": cores,
        "core_config": core,
        "global_memory_config": _memory(draw),
        "network_config": {
            "bus_width": draw.choice((8, 16, 32)),
            "layout": [1, cores],
            "net_config_file_path": "network.json",
        },
    }
    return {"chip_config": chip}


def _network(draw: random.Random, cores: int) -> dict[str, Any]:
    kind = draw.choice(("mesh", "mesh", "random", "fractions", "gaps"))
    latency: dict[str, dict[str, float]] = {}
    for a in range(cores):
        row: dict[str, float] = {str(b): 2 + 2 * abs(a - b) for b in range(cores) if a != b} | {str(MEMORY): 15}
        if kind in ("random", "gaps"):
            row = {b: draw.randint(0, 20) for b in row}
        if kind == "fractions":
            row = {b: draw.randint(0, 80) / 8 for b in row}
        latency[str(a)] = {b: ns for b, ns in row.items() if kind != "gaps" or draw.random() < 0.8}
    energy = {a: {b: draw.choice((46, 12.5)) for b in row} for a, row in latency.items()}
    return {"latency": latency, "energy": energy}


class _Streams:
    """Draws the streams of a program."""

    def __init__(self, draw: random.Random, groups: list[list[int]], rob_size: int, *, tokens: bool) -> None:
        self.draw, self.groups, self.rob_size, self.tokens = draw, groups, rob_size, tokens
        self.streams: list[list[Instruction]] = [[] for _ in groups]
        self.cores = range(len(groups))

    def build(self) -> list[list[Instruction]]:
        draw = self.draw
        active = [i for i in self.cores if len(self.cores) == 1 or draw.random() < 0.9] or [0]
        for core in active:
            bits = draw.choice((8, 8, 8, 16, 4, 32))
            self.streams[core].append({"op": "setbw", "ibiw": bits, "obiw": draw.choice((bits, 8, 32))})
        messages = draw.choice((0.1, 0.3, 0.6))
        for _ in range(draw.choice((10, 40, 150)) * len(active)):
            if len(active) > 1 and draw.random() < messages:
                self._message(*draw.sample(active, 2))
            else:
                self._local(draw.choice(active))
        for core in active:
            self._operation(core)
        return self.streams

    def _message(self, source: int, to: int) -> None:
        draw = self.draw
        if self.tokens and draw.random() < 0.25:
            event = source
            count = draw.randint(1, 3)
            for _ in range(count):
                self.streams[source].append({"op": "sync", "core": to, "event_register": event})
            if draw.random() < 0.9:
                self.streams[to].append({"op": "wait", "event_register": event, "wait_value": draw.randint(0, count)})
            return
        size = self._size()
        register = draw.randrange(1, 8)
        self._maybe_setup(source, register)
        offset = self._offset()
        send = {"op": "send", "rd": register, "rs1": register, "core": to, "size": size} | offset
        self.streams[source].append(send)
        other = size if draw.random() < 0.9 else self._size()
        self.streams[to].append({"op": "recv", "rd": draw.randrange(1, 8), "core": source, "size": other} | offset)

    def _local(self, core: int) -> None:
        draw = self.draw
        if draw.random() < 0.4:
            for _ in range(draw.randint(1, 4)):
                self._scalar(core)
        if draw.random() < 0.02:
            bits = draw.choice((8, 16))
            self.streams[core].append({"op": "setbw", "ibiw": bits, "obiw": bits})
        self._operation(core)

    def _scalar(self, core: int) -> None:
        draw = self.draw
        op = draw.choice((*SCALARS, "sldi", "sldi", "sldi", "sld"))
        rd, rs1, rs2 = draw.randrange(0, 8), draw.randrange(0, 8), draw.randrange(0, 8)
        imm = draw.choice((0, 1, 7, 64, 256, 1000, 4096, -3))
        fields: Instruction = {"op": op, "rd": rd}
        if op in ("sadd", "ssub", "smul"):
            fields |= {"rs1": rs1, "rs2": rs2}
        elif op in ("saddi", "smuli"):
            fields |= {"rs1": rs1, "imm": imm}
        elif op == "sldi":
            fields |= {"imm": imm}
        else:
            fields |= {"rs1": 2 * (rs1 // 2)}
        self.streams[core].append(fields)

    def _maybe_setup(self, core: int, register: int) -> None:
        if self.draw.random() < 0.5:
            address = self.draw.randrange(0, 64) * self.draw.choice((64, 100, 513))
            self.streams[core].append({"op": "sldi", "rd": register, "imm": address})

    def _size(self) -> int:
        return self.draw.choice((0, 1, 16, 64, 64, 100, 256, 1000))

    def _offset(self) -> Instruction:
        if self.draw.random() < 0.8:
            return {}
        value = self.draw.choice((0, 1, 2, 4, 6, 64, 130))
        return {"offset": {"offset_select": self.draw.randrange(8), "offset_value": value}}

    def _operation(self, core: int) -> None:
        draw = self.draw
        rd, rs1, rs2 = draw.randrange(1, 8), draw.randrange(1, 8), draw.randrange(1, 8)
        self._maybe_setup(core, draw.choice((rd, rs1, rs2)))
        kind = draw.choice(("mvmul", "mvmul", "two", "one", "register", "lldi", "lmv", "ld", "st"))
        size = self._size()
        fields: Instruction
        if kind == "mvmul":
            group = draw.randrange(len(self.groups[core]))
            fields = {"op": "mvmul", "rd": rd, "rs1": rs1, "mbiw": draw.choice((8, 8, 4, 16)), "group": group}
        elif kind == "two":
            fields = {"op": draw.choice(TWO), "rd": rd, "rs1": rs1, "rs2": rs2, "len": size} | self._offset()
        elif kind == "one":
            fields = {"op": draw.choice(ONE), "rd": rd, "rs1": rs1, "len": size} | self._offset()
        elif kind == "register":
            fields = {"op": draw.choice(WITH_REGISTER), "rd": rd, "rs1": rs1, "rs2": rs2, "len": size} | self._offset()
        elif kind == "lldi":
            fields = {"op": "lldi", "rd": rd, "imm": 0, "len": size} | self._offset()
        elif kind == "lmv":
            fields = {"op": "lmv", "rd": rd, "rs1": rs1, "len": size} | self._offset()
            if draw.random() < 0.8:
                fields["size"] = size
        elif kind == "ld":
            fields = {"op": "ld", "rd": rd, "rs1": 2 * (rs1 // 2), "size": size} | self._offset()
        else:
            fields = {"op": "st", "rd": 2 * (rd // 2), "rs1": rs1, "size": size} | self._offset()
        self.streams[core].append(fields)
