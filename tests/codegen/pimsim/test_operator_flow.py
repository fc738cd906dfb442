"""The flow of operators: its text is run here, by a machine that knows nothing of the streams, and must be right."""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.tools.cli import app
from tests.oversized_models import chain
from tests.tiny_models import golden, make_model, node
from validator.execution.run import prepare_machine
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram

CHIP = {"xbar": 16, "cores": 6, "xbars_per_core": 8}
DACS = 6
PLACE = re.compile(r"(local|global)\[(\d+):(\d+)\]")


def numbers(*shape: int, seed: int = 0) -> Any:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(np.float32)


def model() -> Any:
    nodes = [
        node("Conv", "x w b", "c", name="conv", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r", name="relu"),
        node("Flatten", "r", "f", name="flatten"),
        node("Gemm", "f v", "y", name="gemm"),
    ]
    weights = {"w": numbers(4, 3, 3, 3), "b": numbers(4), "v": numbers(64, 10)}
    return make_model(nodes, {"x": (1, 3, 4, 4)}, ["y"], weights)


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[str]]]:
    """Compiles for an interface, each once. Returns the output and the lines of the flow."""
    known: dict[str, tuple[Path, list[str]]] = {}

    def compiled(interface: str) -> tuple[Path, list[str]]:
        if interface not in known:
            folder = tmp_path_factory.mktemp(interface)
            fields = {"interface": interface, "dac_count": DACS}
            program = raptor.compile(model(), **CHIP, fields=fields, emit_ops=folder / "flow.txt")
            known[interface] = program.save(folder / "out"), (folder / "flow.txt").read_text().splitlines()
        return known[interface]

    return compiled


def cores_of(lines: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in lines:
        if line.startswith("core "):
            found[int(line.split()[1])] = current = []
        elif line.startswith("  "):
            current.append(line.strip())
    return found


class Board:
    """A chip that knows operators only: crossbars that were written, memories, messages."""

    def __init__(self, program: LoadedProgram, lines: list[str], memory: Any) -> None:
        self.program, self.memory = program, memory
        self.messages: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.local = {core: np.zeros(2**12, np.float32) for core in cores_of(lines)}
        self.matrices: dict[tuple[int, str], Any] = {}
        self.most_rows = 0
        running = [self.run(core, work) for core, work in cores_of(lines).items()]
        while running:
            before = sum(map(len, self.messages.values()))
            running = [core for core in running if next(core, "ended") != "ended"]
            assert not running or sum(map(len, self.messages.values())) != before or before, "all cores wait"

    def run(self, core: int, lines: list[str]) -> Iterator[str]:
        for line in lines:
            word, *_ = line.split()
            places = [self.view(core, *place) for place in PLACE.findall(line)]
            if word == "recv":
                queue = self.messages[int(re.findall(r"core=(\d+)", line)[0]), core]
                while not queue:
                    yield "waits"
                places[0][:] = queue.popleft()
            elif word == "send":
                self.messages[core, int(re.findall(r"core=(\d+)", line)[0])].append(places[0].copy())
            elif word.startswith("write_"):
                self.matrices[core, line.split()[1]] = self.program.weights.matrix(core, self.groups(core))
            else:
                self.do(core, word, line, places)

    def groups(self, core: int) -> int:
        return sum(held == core for held, _ in self.matrices)

    def do(self, core: int, word: str, line: str, places: list[Any]) -> None:
        if word in ("read_xb", "read_row"):
            rows = slice(None)
            if word == "read_row":
                first, last = map(int, re.findall(r"rows=(\d+):(\d+)", line)[0])
                rows, self.most_rows = slice(first, last), max(self.most_rows, last - first)
            product = places[1] @ self.matrices[core, line.split()[1]][rows]
            places[0][:] = places[0] + product if "+=" in line else product
            if line.endswith(" relu"):
                np.maximum(places[0], 0, out=places[0])
        elif word in ("ld", "st", "lmv"):
            places[0][:] = places[1]
        elif word == "lldi":
            assert "imm=0 " in f"{line} "
            places[0][:] = 0
        elif word == "vvadd":
            places[0][:] = places[1] + places[2]
        elif word == "vrelu":
            places[0][:] = np.maximum(places[1], 0)
        else:
            assert word == "setbw", line

    def view(self, core: int, memory: str, start: str, stop: str) -> Any:
        return (self.memory if memory == "global" else self.local[core])[int(start) : int(stop)]


def run(folder: Path, lines: list[str]) -> tuple[Board, list[float]]:
    """Runs a flow. Returns the chip and the output."""
    program = load_output(folder)
    x = numbers(1, 3, 4, 4, seed=5)
    board = Board(program, lines, prepare_machine(program, {"x": x}).memory)
    place = program.memory.outputs[0].tiles[0].address
    want = golden(model(), {"x": x})["y"].ravel().tolist()
    return board, [float(v) for v in board.memory[place : place + len(want)] - want]


@pytest.mark.parametrize("interface", ["crossbar", "wordline"])
def test_a_flow_computes_the_model(interface: str, flow: Any):
    folder, lines = flow(interface)
    board, errors = run(folder, lines)
    assert not any(errors)
    assert board.most_rows == (DACS if interface == "wordline" else 0)


def reads(lines: list[str], word: str) -> list[str]:
    return [line for line in lines if line.strip().startswith(f"{word} ")]


def test_word_lines_are_read_as_often_as_rows_at_once_demand(flow: Any):
    folder, lines = flow("wordline")
    _, whole = flow("crossbar")
    program = load_output(folder)
    products = [(c, int(r["c"])) for c, records in enumerate(program.streams) for r in records if r["opcode"] == 9]
    heights = [program.weights.matrix(*place).shape[0] for place in products]
    assert len(reads(whole, "read_xb")) == len(products)
    assert len(reads(lines, "read_row")) == sum(-(-height // DACS) for height in heights) > len(products)
    assert [line for line in lines if "rows at once" in line] == [f"rows at once {DACS}"]
    # Every row is driven once for each product, in order.
    ends = [tuple(map(int, re.findall(r"rows=(\d+):(\d+)", line)[0])) for line in reads(lines, "read_row")]
    assert all(start == (0 if start == 0 else before) for (_, before), (start, _) in pairwise(ends))
    assert sum(stop - start for start, stop in ends) == sum(heights)


def test_whole_cores(flow: Any):
    _, lines = flow("core")
    assert lines == [
        "interface core",
        "chip 6 cores of 8 crossbars of 16 x 16 cells of 8 bits",
        *sorted(line for line in lines if line.startswith("write_core")),
        "%x = input 1x3x4x4",
        f"read_core {holders(lines, 'c.products')} %c.products = filter 9x3x4 kernel=3x3 pad=1x1 %x : 1x4x4x4  # conv",
        "%c = map.add const 1x1x4 %c.products : 1x4x4x4  # conv",
        "%r = map.relu %c : 1x4x4x4  # relu",
        "%f = rename %r : 1x64  # flatten",
        f"read_core {holders(lines, 'y')} %y = filter 16x4x10 kernel=4x4 %f : 1x10  # gemm",
        "return %y",
    ]


def holders(lines: list[str], layer: str) -> str:
    found = [line.split()[1] for line in lines if line.startswith("write_core") and line.endswith(f"%{layer}")]
    assert len(found) == 1
    return found[0]


def moved(by: int) -> Callable[[re.Match[str]], str]:
    """Returns what moves the range of a match."""
    return lambda match: f"{match[1]}{int(match[2]) + by}:{int(match[3]) + by}"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"(rows=)(6):(\d+)", moved(-1)),
        (r"\+=", "="),
        (r"(send local\[)(\d+):(\d+)", moved(1)),
        (r"(vvadd local\[)(\d+):(\d+)", moved(1)),
    ],
)
def test_a_defect_is_seen(old: str, new: Any, flow: Any):
    """The planted defects: other rows, a sum that is lost, another place."""
    folder, lines = flow("wordline")
    text, count = re.subn(old, new, "\n".join(lines), count=1)
    assert count == 1
    assert any(run(folder, text.splitlines())[1])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import onnx

    monkeypatch.chdir(tmp_path)
    onnx.save(model(), "model.onnx")
    words = ["compile", "model.onnx", "--xbar", "16", "--cores", "6", "--emit-ops", "flow.txt", "-q"]

    def status(*more: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            app.main([*words, *more])
        return ended.value.code or 0, capsys.readouterr().err

    assert status("--field", "interface=core") == (0, "")
    assert (tmp_path / "flow.txt").read_text().startswith("interface core\n")
    assert "exists; --force replaces it" in status("-o", "other")[1]
    assert status("--force", "--field", "interface=cell")[0] == 2
    assert "not with --stop-after" in status("--stop-after", "map")[1]


def test_where_it_has_no_effect(tmp_path: Path):
    with pytest.raises(UserError, match=r"fields='interface': only with emit_ops="):
        raptor.compile(model(), **CHIP, fields={"interface": "core"})
    with pytest.raises(UserError, match="emit_ops=: of one program, but each round"):
        raptor.compile(chain(), xbar=16, cores=2, xbars_per_core=6, rounds=True, emit_ops=tmp_path / "flow.txt")
    assert not list(tmp_path.iterdir())
