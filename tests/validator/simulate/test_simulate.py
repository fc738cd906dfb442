"""The command and what it reports."""

import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import raptor
from raptor.common.errors import UserError
from raptor.target import arch as architectures
from raptor.tools.cli.arch_view import write_architecture
from tests import decoder_models as decoders
from tests.validator.simulate.programs import SETBW, arch, lldi, mvmul, recv, send, sldi, write
from validator.errors import DeadlockError, ProgramError
from validator.simulate import builtin, pimsim
from validator.simulate.cli import command

ADD = {"op": "vvadd", "rd": 1, "rs1": 2, "rs2": 3, "len": 64}
SENDER = [SETBW, *[sldi(1, 0), mvmul(), ADD] * 20, send(1, 256)]
RECEIVER = [SETBW, recv(0, 256), *[mvmul()] * 5, {"op": "st", "rd": 2, "rs1": 1, "size": 64}]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write(tmp_path / "out", SENDER, RECEIVER)


def cli(*arguments: str | Path) -> str:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_json_report(program: Path, tmp_path: Path):
    file = tmp_path / "report.json"
    text = cli(program, "--json", file, "--mode", "throughput")
    report = json.loads(file.read_bytes())
    assert report["estimator"].startswith("raptor-cycle-model ")
    assert report["latency_ns"] > report["interval_ns"] > 0
    assert report["samples_per_s"] == pytest.approx(1e9 / report["interval_ns"])
    assert report["energy_pj"] == pytest.approx(sum(report["energy_parts_pj"].values()))
    assert sum(report["critical_path_ns"].values()) == pytest.approx(report["latency_ns"])
    assert {"latency", "throughput", "energy", "critical path"} <= set(text.replace("   ", "\n").split("\n"))


def test_time_of_a_core_adds_up(program: Path):
    report = builtin.simulate(program, program / "arch.json")
    sender, receiver = report.cores
    assert receiver.wait_recv_ns > 0.9 * sender.finish_ns
    assert receiver.wait_send_ns == sender.wait_recv_ns == 0
    for core in report.cores:
        times = (core.vector_ns, core.matrix_ns, core.transfer_ns, core.wait_send_ns, core.wait_recv_ns, core.idle_ns)
        assert sum(times) == pytest.approx(core.finish_ns)


def test_the_critical_path_follows_a_message(program: Path):
    report = builtin.simulate(program, program / "arch.json")
    path = report.critical_path_ns
    # All products of the sender, then those of the receiver, though the receiver waits for most of the time.
    assert path["mvmul"] == pytest.approx(25 * 1658, rel=0.01)
    assert path.get("recv", 0) < 500


def test_steps_name_onnx_nodes(program: Path):
    steps = {
        "version": 1,
        "nodes": ["conv", "head"],
        "operations": ["apply filters", "send"],
        "cores": [
            {"core": 0, "ends": [len(SENDER) - 1, len(SENDER)], "nodes": [0, 1], "operations": [0, 1]},
            {"core": 1, "ends": [len(RECEIVER)], "nodes": [1], "operations": [0]},
        ],
    }
    (program / "steps.json").write_text(json.dumps(steps))
    report = builtin.simulate(program, program / "arch.json")
    assert report.critical_path_by == "node"
    assert list(report.critical_path_ns) == ["conv", "head"]
    steps["cores"][1]["ends"] = [3]
    (program / "steps.json").write_text(json.dumps(steps))
    with pytest.raises(UserError, match="core 1 has other instructions"):
        builtin.simulate(program, program / "arch.json")


def test_the_trace(program: Path, tmp_path: Path):
    file = tmp_path / "trace.json"
    cli(program, "--trace", file)
    events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in spans} == {"mvmul", "vvadd", "send", "recv", "st"}
    assert sum(e["args"]["instructions"] for e in spans) == 20 * 2 + 1 + 7
    assert sum(e["name"] == "vvadd" for e in spans) == 20  # a pause between two of them, while mvmul runs
    start, end = (next(e for e in events if e["ph"] == phase) for phase in "sf")
    assert (start["pid"], end["pid"], start["id"]) == (0, 1, end["id"])
    for pid, tid in {(e["pid"], e["tid"]) for e in spans}:
        track = [e for e in spans if (e["pid"], e["tid"]) == (pid, tid)]
        for a, b in itertools.pairwise(track):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-9


def test_tracks_of_the_trace(program: Path, tmp_path: Path):
    """The trace has one track for each core and unit, and events named after ONNX nodes."""
    steps = {
        "version": 1,
        "nodes": ["conv", "head"],
        "operations": ["apply filters", "pass on"],
        "cores": [
            {"core": 0, "ends": [len(SENDER) - 1, len(SENDER)], "nodes": [0, 1], "operations": [0, 1]},
            {"core": 1, "ends": [len(RECEIVER)], "nodes": [1], "operations": [0]},
        ],
    }
    (program / "steps.json").write_text(json.dumps(steps))
    file = tmp_path / "trace.json"
    cli(program, "--trace", file)
    events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    cores = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert cores == {0: "core 0", 1: "core 1", 2: "chip"}
    assert sorted(tracks) == [(0, "matrix"), (0, "transfer"), (0, "vector"), (1, "matrix"), (1, "transfer")]
    assert {(e["pid"], e["name"]) for e in events if e["ph"] == "X"} == {
        (0, "conv: apply filters (mvmul)"),
        (0, "conv: apply filters (vvadd)"),
        (0, "head: pass on (send)"),
        (1, "head: apply filters (recv)"),
        (1, "head: apply filters (mvmul)"),
        (1, "head: apply filters (st)"),
    }


def test_a_trace_is_thinned(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("validator.simulate.analysis.chrome_trace.EVENT_LIMIT", 4)
    cli(
        write(tmp_path / "alternating", [SETBW, *[lldi(8), send(1, 8)] * 50], [recv(0, 8)] * 50),
        "--trace",
        tmp_path / "t",
    )
    spans = [e for e in json.loads((tmp_path / "t").read_bytes())["traceEvents"] if e["ph"] == "X"]
    assert len(spans) <= 6
    assert sum(e["args"]["instructions"] for e in spans) == 150


def test_a_deadlock_names_cores_and_instructions(tmp_path: Path):
    folder = write(tmp_path, [lldi(8), send(1, 8), recv(1, 8)], [send(0, 8), recv(0, 8)], [lldi(8)])
    with pytest.raises(DeadlockError) as caught:
        builtin.simulate(folder, folder / "arch.json")
    assert caught.value.exit_status == 3
    first, second = caught.value.blocked
    assert (first.core, first.pc, second.core, second.pc) == (0, 1, 1, 0)
    assert "core 1 to receive; it is at 0 (send" in first.waits_for


@pytest.mark.parametrize("rob_size", [1, 4])
@pytest.mark.parametrize(
    ("stream", "pc", "reason"),
    [
        ([lldi(8), {"op": "nop"}, lldi(8)], 1, "nop never completes"),
        ([lldi(8), sldi(1, 2)], 1, "last instruction is scalar"),
        ([lldi(8), {"op": "wait", "event_register": 2, "wait_value": 1}], 1, "1 tokens in event register 2"),
    ],
)
def test_what_never_ends(tmp_path: Path, rob_size: int, stream: list[dict[str, Any]], pc: int, reason: str):
    folder = write(tmp_path, stream, rob_size=rob_size)
    with pytest.raises(DeadlockError, match=reason) as caught:
        builtin.simulate(folder, folder / "arch.json")
    assert caught.value.blocked[0].pc == pc


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (mvmul(3), "no such array group"),
        (mvmul() | {"mbiw": 0}, "divides by zero"),
        (send(5, 8), "no such core"),
        (sldi(40, 1), "a register above r31"),
        (lldi(-1), "a negative length"),
        ({"op": "wait", "event_register": 32, "wait_value": 1}, "no such event register"),
    ],
)
def test_what_crashes_the_simulator_is_refused(tmp_path: Path, instruction: dict[str, Any], reason: str):
    folder = write(tmp_path, [SETBW, instruction, lldi(8)])
    with pytest.raises(ProgramError, match=f"core 0, instruction 1 .*{reason}"):
        builtin.simulate(folder, folder / "arch.json")


def test_warnings(tmp_path: Path):
    folder = write(tmp_path, [mvmul(), send(1, 8)], [recv(0, 8)])
    chip = arch()
    chip["chip_config"]["core_config"]["typo"] = 1
    (folder / "arch.json").write_text(json.dumps(chip))
    (folder / "network.json").write_text('{"latency": {"1": {"0": 4}}, "energy": {"1": {"0": 46}}}')
    warnings = "\n".join(builtin.simulate(folder, folder / "arch.json").warnings)
    assert "no field chip_config.core_config.typo" in warnings
    assert "1 pairs that talk are missing and cost nothing: 0 to 1" in warnings
    assert "no setbw before the first product or vector on 1 cores (0)" in warnings


def test_instructions_unknown_to_the_simulator_have_stand_ins(tmp_path: Path):
    def latency(name: str, op: str) -> float | None:
        stream = [SETBW, {"op": op, "rd": 1, "rs1": 2, "len": 64}]
        return builtin.simulate(write(tmp_path / name, stream), tmp_path / name / "arch.json").latency_ns

    assert latency("a", "vsoftmax") == latency("b", "vsigm")


@pytest.mark.parametrize("packed", [False, True])
def test_single_files(tmp_path: Path, program: Path, packed: bool):
    config = json.loads((program / "config.json").read_text())
    content = json.dumps({"config": config, "core0": SENDER, "core1": RECEIVER}).encode()
    file = tmp_path / "out" / "program.anything"
    file.write_bytes(gzip.compress(content) if packed else content)
    one, other = (builtin.simulate(path, program / "arch.json") for path in (file, program))
    assert (one.latency_ns, one.energy_pj) == (other.latency_ns, other.energy_pj)


def test_a_core_left_out_draws_no_power(tmp_path: Path):
    write(tmp_path, [lldi(8)], [])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "one.json").write_text(json.dumps({"config": config, "core0": [lldi(8)]}))
    whole = builtin.simulate(tmp_path, tmp_path / "arch.json")
    one = builtin.simulate(tmp_path / "one.json", tmp_path / "arch.json")
    assert whole.latency_ns == one.latency_ns
    # 1 mW for each local memory, and for the global one.
    assert whole.energy_parts_pj["static"] == pytest.approx(1.5 * one.energy_parts_pj["static"])


def test_streams_of_one_instruction_do_not_loop(tmp_path: Path):
    folder = write(tmp_path, [lldi(8)])
    with pytest.raises(UserError, match="one instruction or none"):
        builtin.simulate(folder, folder / "arch.json", mode="throughput")


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_a_preset_is_the_file_that_arch_new_writes(program: Path, tmp_path: Path, mode: Any):
    written = tmp_path / "chip" / "arch.json"
    written.parent.mkdir()
    write_architecture(architectures.describe_chip("isaac"), written)
    reports = [builtin.simulate(program, arch, mode=mode) for arch in ("isaac", written)]
    assert len({(r.latency_ns, r.interval_ns, r.energy_pj) for r in reports}) == 1
    cli(program, "--arch", "isaac", "--json", tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_bytes())["latency_ns"] == reports[0].latency_ns
    with pytest.raises(UserError, match=r"no such file; give a file or one of: .*isaac"):
        builtin.simulate(program, "isac")


FAKE = """#!{python}
import json, sys
arch = json.load(open(sys.argv[2]))
assert arch["sim_config"]["sim_mode"] == {sim_mode} and arch["sim_config"]["latency_timeout_ms"] > 0
network = arch["chip_config"]["network_config"]["net_config_file_path"]
assert json.load(open(network))["latency"]["0"]["1"] > 0
{body}
"""
LATENCY = 'print("  - latency:      0.25 ms\\n  - average energy:     17.5 pJ")'
THROUGHPUT = """
time = arch["sim_config"]["sim_time"]
assert arch["sim_config"]["report_verbose_level"] == 1
rounds = [max(0, int((time - begin) // {interval})) for begin in {begins}]
print("  - average latency:    %.9f ms" % (time / min(rounds)))
print("  - average energy:     %.9f pJ/it" % ((40 + 10 * time / {interval}) / min(rounds)))
for core, count in enumerate(rounds):
    print("Core %d Information\\n  - rounds:             %d samples\\n  - average power: 1 mW" % (core, count))
"""


def write_fake(path: Path, sim_mode: int, body: str) -> Path:
    path.write_text(FAKE.format(python=sys.executable, sim_mode=sim_mode, body=body))
    path.chmod(0o755)
    return path


def test_the_real_simulator(tmp_path: Path, program: Path):
    binary = write_fake(tmp_path / "ChipTest", 1, LATENCY)
    report = pimsim.simulate_with_pimsim(program, "puma", binary)
    assert report.energy_pj == 17.5
    report = pimsim.simulate_with_pimsim(program, program / "arch.json", binary)
    assert (report.estimator, report.latency_ns, report.energy_pj) == ("pimsim-nn", 250_000, 17.5)
    assert subprocess.run([binary], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("deep", [0, 7.3])
def test_the_interval_of_the_real_simulator_is_without_the_time_of_filling(tmp_path: Path, program: Path, deep: float):
    """The last core begins `deep` intervals after the first one; what it prints is a time that includes them."""
    expected = builtin.simulate(program, program / "arch.json", mode="throughput")
    assert expected.interval_ns is not None
    interval, cores = expected.interval_ns / 1e6, len(list(program.glob("core_*.json")))
    begins = [deep * interval * core / cores for core in range(cores)]
    body = THROUGHPUT.format(interval=interval, begins=begins)
    binary = write_fake(tmp_path / "ChipTest", 0, body)
    report = pimsim.simulate_with_pimsim(program, program / "arch.json", binary, mode="throughput", samples=24)
    assert report.interval_ns == pytest.approx(expected.interval_ns, rel=1e-6)
    assert report.energy_pj == pytest.approx(10, rel=1e-6)
    assert report.latency_ns is None


def test_the_real_simulator_needs_more_samples_for_a_deeper_program(tmp_path: Path, program: Path):
    body = 'print("  - average latency: 1 ms\\n  - average energy: 1 pJ")'
    binary = write_fake(tmp_path / "ChipTest", 0, body)
    with pytest.raises(UserError, match="a core has not done its stream once; simulate more samples"):
        pimsim.simulate_with_pimsim(program, program / "arch.json", binary, mode="throughput")


def test_the_tokens_of_a_decoder_are_told() -> None:
    """The first one comes after an interval for each token of a prompt but the last, and a step."""
    program = raptor.compile(decoders.plain_decoder(), states="auto", capacity=6, cores=32)
    alone, stream = program.simulate().tokens, program.simulate(mode="throughput")
    many = stream.tokens
    assert alone is not None
    assert many is not None
    assert (alone.capacity, alone.stream_per_s, alone.first_ns) == (6, None, None)
    assert many.session_per_s == pytest.approx(1e9 / (stream.latency_ns or 0))
    assert many.stream_per_s == stream.samples_per_s
    assert many.prompt == 5
    assert many.first_ns == pytest.approx(4 * (stream.interval_ns or 0) + (stream.latency_ns or 0))
    assert (many.with_uncounted_pj or 0) > many.energy_pj == stream.energy_pj
