"""Random streams of integers and floats: both engines and both schedules end alike, in a trap or not."""

from pathlib import Path

import numpy as np
import pytest

from raptor.target.isa import BY_NAME
from tests.validator.builder import Builder, address, op, stream
from tests.validator.engines.integer_programs import run_all
from validator.engines.integer_semantics import FLOAT_INSTRUCTIONS, INTEGER_INSTRUCTIONS
from validator.engines.machine import EngineStop
from validator.errors import ProgramError
from validator.load.output_directory import load_output

LOCAL = 1024
Draw = np.random.Generator
Rows = list[tuple[int, ...]]


def width(draw: Draw) -> int:
    return int(draw.choice([8, 16, 24, 32])) if draw.random() < 0.85 else int(draw.integers(1, 33))


def registers(draw: Draw) -> Rows:
    """Addresses in registers 1 to 3, mostly aligned and apart, and a small number in register 9."""
    apart = draw.random() < 0.8
    ranges = ((0, 200), (350, 450), (620, 800)) if apart else ((0, LOCAL - 200),) * 3
    places = [int(draw.integers(*bounds)) for bounds in ranges]
    step = 4 if draw.random() < 0.8 else 1
    bound = int(draw.choice([-128, 0, 1, 2, 3, 100, 127]))
    return [*(address(r, at // step * step) for r, at in enumerate(places, 1)), address(9, bound)]


def vector(draw: Draw, name: str, length: int) -> tuple[int, ...]:
    operands = {o.name for o in BY_NAME[name].operands}
    second = {"rs2": 9 if name in ("vmv", "vavg", "vrsu", "vrsl") else 2} if "rs2" in operands else {}
    offset = {"offset_select": int(draw.integers(0, 8)), "offset_value": int(draw.integers(0, 4))}
    more = offset if name not in ("vmv", "vavg") and draw.random() < 0.3 else {}
    return op(name, rd=3, rs1=1, **second, **more, len=length)


def integers(draw: Draw) -> Rows:
    """An instruction of integers, now and then a resize before it, so that its results fit."""
    bits, out, length = width(draw), width(draw), int(draw.integers(1, 30))
    name = str(draw.choice([*INTEGER_INSTRUCTIONS]))
    if name == "mvmul":
        return [
            op("setbw", ibiw=bits, obiw=out),
            op("mvmul", rd=3, rs1=1, mbiw=8, relu=int(draw.integers(0, 2)), group=0),
        ]
    return [op("setbw", ibiw=min(bits, 8) if name == "vlut" else bits, obiw=out), vector(draw, name, length)]


def floats(draw: Draw) -> Rows:
    name, length = str(draw.choice([*FLOAT_INSTRUCTIONS, "vfloat", "vround"])), int(draw.integers(1, 30))
    bits, out = (width(draw), 32) if name == "vfloat" else (32, width(draw)) if name == "vround" else (32, 32)
    return [op("setfp", ibiw=bits, obiw=out), vector(draw, name, length)]


def moves(draw: Draw) -> Rows:
    size = int(draw.integers(1, 60))
    fill = op("lldi", rd=int(draw.integers(1, 4)), imm=int(draw.choice([0, 0, 1, 255, -128])), len=size)
    return [fill if draw.random() < 0.5 else op("lmv", rd=3, rs1=1, len=size)]


def program(draw: Draw) -> Builder:
    """Two cores that load numbers, most of them small, and compute; the first sends its memory to the second."""
    content = draw.integers(0, 256, 512, np.uint8)
    content[draw.random(512) < 0.9] = 0
    start = [address(1, 0), address(28, 0), address(29, 0), op("ld", rd=1, rs1=28, size=512)]
    start += [address(1, 512), op("lldi", rd=1, imm=int(draw.integers(0, 2)), len=int(draw.integers(100, 500)))]
    cores: list[Rows] = []
    for _ in range(2):
        rows = [*start]
        for _ in range(int(draw.integers(1, 5))):
            rows += registers(draw)
            kind = draw.random()
            rows += integers(draw) if kind < 0.6 else floats(draw) if kind < 0.8 else moves(draw)
        cores.append(rows)
    cores[0] += [address(1, 0), op("send", rd=1, rs1=1, core=1, size=LOCAL)]
    cores[1] += [address(1, 0), op("recv", rd=1, core=0, size=LOCAL)]
    matrix = draw.integers(-8, 8, (8, 8)).astype(np.int8)
    return Builder(
        [stream(*rows) for rows in cores],
        matrices={0: [matrix], 1: [matrix]},
        constants=content,
        size_bytes=512,
        local_bytes=LOCAL,
        numbers="mixed",
        npz=True,
    )


@pytest.mark.parametrize("seed", range(40))
def test_engines_and_schedules_agree(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    stops = [run_all(tmp_path / str(k), program(draw))[0].stop for k in range(10)]
    assert EngineStop.NO_MEANING not in stops


def test_random_programs_end_in_many_ways(tmp_path: Path) -> None:
    """Keeps the test above from saying little."""
    draw = np.random.default_rng(0)
    stops = [run_all(tmp_path / str(k), program(draw))[0].stop for k in range(200)]
    assert stops.count(EngineStop.DONE) > 10
    assert {EngineStop.OVERFLOW, EngineStop.UNWRITTEN, EngineStop.OVERLAP, EngineStop.SHIFT} <= set(stops)


def loads(folder: Path) -> bool:
    """Tells whether a program is accepted; else its widths must be the reason."""
    try:
        load_output(folder)
    except ProgramError as e:
        return not any(text in e.reason for text in ("meaning", "float32", "at most 8 bits"))
    return True


@pytest.mark.parametrize("seed", range(5))
def test_what_loads_runs(tmp_path: Path, seed: int) -> None:
    """`check` lets nothing pass that an engine has no meaning for: any instruction at any widths."""
    draw = np.random.default_rng(seed)
    for k in range(60):
        name = str(draw.choice([*INTEGER_INSTRUCTIONS, *FLOAT_INSTRUCTIONS, "vfloat", "vround"]))
        kind = str(draw.choice(["setbw", "setfp"]))
        widths = op(kind, ibiw=int(draw.choice([8, 9, 32])), obiw=int(draw.choice([8, 32])))
        instruction = op("mvmul", rd=3, rs1=1, mbiw=8, group=0) if name == "mvmul" else vector(draw, name, 4)
        rows = (*registers(draw), op("lldi", rd=1, len=64), op("lldi", rd=2, len=64), widths, instruction)
        builder = Builder([stream(*rows)], matrices={0: [np.eye(8, dtype=np.int8)]}, local_bytes=2048, numbers="mixed")
        folder = builder.write(tmp_path / f"{k}")
        if loads(folder):
            assert run_all(folder, builder)[0].stop is not EngineStop.NO_MEANING
