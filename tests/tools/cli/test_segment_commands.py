"""Every command understands a program in segments, and no figure contains the host."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.compiler.segmented_compile import divide_cores
from raptor.tools.cli import app
from tests.segmented_models import CHIP, compiled, sandwich
from tests.tiny_models import node, random
from validator.checks import check

SEGMENTS = ("segment_000", "segment_002")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands") / "out"
    compiled(sandwich([node("Relu", "a", "b", name="middle")]), folder, host_nodes=("middle",))
    return folder


def test_simulated_times_add_up(out: Path):
    parts = [raptor.simulate(out / name) for name in SEGMENTS]
    whole = raptor.load(out).simulate()
    assert whole.latency_ns == sum(part.latency_ns or 0.0 for part in parts)
    assert whole.energy_pj == pytest.approx(sum(part.energy_pj or 0.0 for part in parts))
    assert whole.critical_path_ns.keys() == {"first", "last"}
    assert whole.xbars_used == sum(part.xbars_used for part in parts)
    assert whole.warnings[0].startswith("1 node in 1 segment on the host: time and energy are not modelled")


def test_streaming_the_slowest_segment_gives_the_rate(out: Path):
    parts = [raptor.simulate(out / name, mode="throughput") for name in SEGMENTS]
    whole = raptor.load(out).simulate(mode="throughput")
    assert whole.interval_ns == max(part.interval_ns or 0.0 for part in parts)
    static = [part.energy_parts_pj["static"] for part in parts]
    assert whole.energy_parts_pj["static"] == max(static)


def test_what_is_of_one_segment_says_so(out: Path, tmp_path: Path):
    program = raptor.load(out)
    for act in (program.explain, lambda: program.simulate(trace_file=tmp_path / "trace.json")):
        with pytest.raises(UserError, match=r"of one segment of the chip: one of .*segment_000, .*segment_002"):
            act()


@pytest.mark.parametrize("given", [{"shapes": {"x": (1, 3, 6, 6)}}, {"dims": {"H": 6, "W": 6}}])
def test_each_segment_is_explained(given: dict[str, Any], tmp_path: Path):
    """The message names directories that can be explained, also where sizes of the model were given (trial, A5)."""
    model = sandwich([node("Relu", "a", "b", name="middle")])
    for axis, name in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    raptor.compile(model, **CHIP, **given, host_nodes=("middle",)).save(tmp_path / "out")
    parts = sorted(p for p in (tmp_path / "out").iterdir() if p.is_dir())
    assert len(parts) == 2
    for part, layer in zip(parts, ("first", "last"), strict=True):
        assert layer in {found.node for found in raptor.load(part).explain().layers}
        with pytest.raises(SystemExit) as ended:
            app.main(["explain", str(part), "-q"])
        assert ended.value.code == 0


def test_findings_name_their_segment(out: Path, tmp_path: Path):
    assert check(out) == ()
    broken = compiled(sandwich([node("Relu", "a", "b", name="middle")]), tmp_path / "out", host_nodes=("middle",))
    assert not broken.check()
    config = tmp_path / "out" / "segment_002" / "config.json"
    found = json.loads(config.read_bytes())
    name = next(core for core, groups in found["array_group_map"].items() if groups)
    found["array_group_map"][name] = []
    config.write_text(json.dumps(found))
    assert {f.file.partition("/")[0] for f in check(tmp_path / "out")} == {"segment_002"}


def test_report_and_comparison(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page, numbers = tmp_path / "page.html", tmp_path / "page.json"
    with pytest.raises(SystemExit):
        app.main(["report", str(out), "-o", str(page), "--json", str(numbers), "-q"])
    found = json.loads(numbers.read_bytes())
    assert [s["path"] for s in found["segments"]] == ["segment_000", "segment_001.onnx", "segment_002"]
    assert [n["node"] for n in found["host_nodes"]] == ["middle"]
    assert found["figures"]["latency_ns"] == raptor.load(out).simulate().latency_ns
    assert any("host" in line and "not modelled" in line for line in found["not_known"])
    assert "Nodes on the host" in page.read_text()
    with pytest.raises(SystemExit) as ended:
        app.main(["compare", str(out), str(out / "segment_000"), "--markdown", "-"])
    assert not ended.value.code
    assert "latency" in capsys.readouterr().out


def test_the_command_line_takes_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(sandwich([node("Relu", "a", "r", name="m1"), node("Neg", "r", "b", name="m2")]), "model.onnx")
    with pytest.raises(SystemExit) as ended:
        app.main(["compile", "model.onnx", "--host-ops", "Relu,Neg", "--cores", "8", "--xbar", "32", "-q"])
    assert not ended.value.code
    assert raptor.load("out").run({"x": random(1, 3, 6, 6)})["y"].shape == (1, 2, 6, 6)


def test_cores_are_shared_by_need_then_by_work():
    assert divide_cores(10, [2, 3], [1, 4]) == [3, 7]
    assert divide_cores(5, [2, 3], [9, 1]) == [2, 3]
    assert divide_cores(9, [1, 1], [0, 0]) == [1, 1]
    model = sandwich([node("Relu", "a", "b", name="middle")])
    with pytest.raises(CapacityError, match=r"2 segments, which share the chip: cores: need 2, have 1"):
        raptor.compile(model, **CHIP | {"cores": 1}, host=True, host_nodes=("middle",))


def test_a_stored_mapping_is_of_one_program(out: Path, tmp_path: Path):
    model = sandwich([node("Relu", "a", "b", name="middle")])
    for option in ({"mapping": out / "segment_000" / "mapping.json"}, {"emit_mapping": tmp_path / "mapping.json"}):
        with pytest.raises(UserError, match="a stored mapping is of one program, but 2 segments"):
            raptor.compile(model, **CHIP, host_nodes=("middle",), **option)


def test_an_option_that_acts_on_nothing_is_refused():
    model = sandwich([node("Relu", "a", "b", name="middle")])
    for nodes in ((), ("middle",)):
        with pytest.raises(UserError, match="no segment of the chip has integers"):
            raptor.compile(model, **CHIP, host=True, host_nodes=nodes, requant="short")
