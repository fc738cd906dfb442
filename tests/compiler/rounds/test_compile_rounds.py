"""A model that is too large for the chip runs in rounds, each a complete program."""

import hashlib
import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import CapacityError, UserError
from raptor.common.files.matrix_digests import digest_matrix
from raptor.compiler.rounds.crossbar_writes import find_steady_writes
from raptor.frontend.segments.slice_layer import LayerSlicer
from raptor.output import writer
from raptor.output.files import GroupWrite, SegmentFile
from raptor.output.writer import SegmentArtifacts
from raptor.target.device_file import CrossbarWrite, DeviceFile, load_device
from tests.oversized_models import CHIP, chain, dense, in_rounds, residual
from tests.segmented_models import sandwich
from tests.tiny_models import golden, make_model, node, random
from validator.load.segmented_program import load_segmented


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds") / "out"
    in_rounds(chain(), folder, batch=4, device="reram-verify")
    return folder


def rounds_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "rounds.json").read_bytes())


def test_a_model_that_fits_is_as_ever(tmp_path: Path):
    for name, rounds in (("plain", False), ("rounds", True)):
        raptor.compile(chain(1), **CHIP | {"cores": 8}, rounds=rounds).save(tmp_path / name)
    assert contents(tmp_path / "plain") == contents(tmp_path / "rounds")


def test_the_refusal_says_what_rounds_would_take():
    with pytest.raises(CapacityError, match=r"rounds=True \(3 or more, which take .* ms to write with reram-puma"):
        raptor.compile(chain(), **CHIP)


def test_each_round_is_a_program_of_its_own(out: Path):
    """Every node is in one round, and each round alone is right."""
    listed = json.loads((out / "segments.json").read_bytes())["segments"]
    assert [n for s in listed for n in s["nodes"]] == [f"{n}{k}" for k in range(4) for n in ("conv", "relu")]
    assert len(listed) > 1
    for segment in listed:
        assert raptor.load(out / segment["path"]).validate(samples=1).passed
        assert (out / segment["path"] / "manifest.json").is_file()
        assert not raptor.load(out / segment["path"]).check()
    assert not raptor.load(out).check()


@pytest.mark.parametrize("before", [False, True])
def test_a_kill_between_two_rounds_leaves_nothing_half_there(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
):
    """The process dies when one round is written, and the next is not; what was there before is as it was."""
    program, folder = raptor.compile(chain(3), **CHIP, rounds=True), tmp_path / "out"
    if before:
        shutil.copytree(out, folder)
    child = os.fork()
    if child == 0:
        real = writer._write_segment

        def dying(segment: SegmentArtifacts, number: int, *rest: Any) -> SegmentFile:
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(segment, number, *rest)

        monkeypatch.setattr(writer, "_write_segment", dying)
        program.save(folder, force=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert folder.exists() == before
    if before:
        assert contents(folder) == contents(out)
    program.save(folder, force=True)
    assert raptor.load(folder).validate(samples=1).passed


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_time_is_writing_the_first_sample_and_intervals(out: Path):
    """The figures are those of the formula in docs/how-to/rounds.md, by hand."""
    found = raptor.load(out).simulate(mode="throughput")
    reloading = found.reloading
    assert reloading is not None
    total = writing = 0.0
    for one in rounds_of(out)["rounds"]:
        alone = raptor.simulate(out / one["path"])
        many = raptor.simulate(out / one["path"], mode="throughput")
        total += one["write_ns"] + alone.latency_ns + 3 * many.interval_ns
        writing += one["write_ns"]
    assert reloading.batch_ns == found.latency_ns == pytest.approx(total)
    assert reloading.writing_ns == pytest.approx(writing)
    assert found.interval_ns == reloading.sample_ns == pytest.approx(total / 4)
    assert reloading.without_ns == pytest.approx((total - writing) / 4)
    assert reloading.sample_pj is None
    assert any("energy of writing is not known" in w for w in found.warnings)
    assert reloading.source == load_device("reram-verify").source


def test_the_batch_at_which_writing_is_a_tenth(out: Path, tmp_path: Path):
    """With that batch it is at most a tenth, and with one less it is more."""
    figures = raptor.load(out).simulate().reloading
    assert figures is not None
    tenth = figures.batch_for_tenth
    assert tenth is not None
    shares = []
    for batch in (tenth - 1, tenth):
        running = sum(r.latency_ns + (batch - 1) * (r.interval_ns or 0.0) for r in figures.rounds)
        shares.append(figures.writing_ns / (figures.writing_ns + running))
    assert shares[0] > 0.1 >= shares[1]


def test_lifetime_is_endurance_by_writes(out: Path):
    figures = raptor.load(out).simulate(rate=100.0).reloading
    assert figures is not None
    worst = max(_writes_by_crossbar(rounds_of(out)).values())
    assert figures.worst_per_sample == worst / 4
    assert figures.years == pytest.approx(1e6 / (worst / 4 * 100) / (365.25 * 24 * 3600))
    cells = sum(w["cells"] for r in rounds_of(out)["rounds"] for w in r["writes"])
    assert figures.writes_per_cell == pytest.approx(cells / (2 * 6 * 16 * 16) / 4)


def _writes_by_crossbar(rounds: dict[str, Any]) -> dict[tuple[int, int], int]:
    count: dict[tuple[int, int], int] = {}
    for write in (w for r in rounds["rounds"] for w in r["writes"]):
        for k in range(write["first"], write["first"] + write["xbars"]):
            count[write["core"], k] = count.get((write["core"], k), 0) + 1
    return count


def test_energy_with_and_without_writing(tmp_path: Path):
    """Writing costs the cells, and the standby of the chip meanwhile."""
    in_rounds(chain(), tmp_path / "out")
    found = raptor.load(tmp_path / "out").simulate()
    figures = found.reloading
    assert figures is not None
    parts = [raptor.simulate(tmp_path / "out" / r.path) for r in figures.rounds]
    assert figures.without_pj == pytest.approx(sum(p.energy_pj or 0.0 for p in parts))
    cells = sum(w["cells"] for r in rounds_of(tmp_path / "out")["rounds"] for w in r["writes"])
    standby = sum(
        p.energy_parts_pj["static"] / (p.latency_ns or 1.0) * r.write_ns
        for p, r in zip(parts, figures.rounds, strict=True)
    )
    assert figures.sample_pj == pytest.approx(figures.without_pj + 1.29 * cells + standby)
    assert found.energy_pj == pytest.approx(figures.sample_pj)
    assert found.energy_parts_pj["writing"] == pytest.approx(1.29 * cells)


def test_what_is_read_later_waits(tmp_path: Path):
    """r0 is read by the last node, so it waits through all rounds behind it."""
    _, artifacts = in_rounds(residual(), tmp_path / "out")
    waits = [set(r["waits"]) for r in rounds_of(tmp_path / "out")["rounds"]]
    assert all("r0" in names for names in waits)
    assert len(waits) > 1
    assert artifacts.segments[-1].reads.count("r0") == 1


def test_rounds_beside_the_host(tmp_path: Path):
    model = sandwich([node("Relu", "a", "b", name="middle")])
    _, artifacts = in_rounds(model, tmp_path / "out", cores=1, xbars_per_core=10, host_nodes=("middle",))
    assert [s.kind for s in artifacts.segments].count("host") == 1
    assert artifacts.rounds is not None
    assert [r.path for r in artifacts.rounds.rounds] == ["segment_000", "segment_002"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "op", "attributes"),
    [
        (16, 300, "Gemm", {}),
        (60, 150, "Gemm", {"transB": 1}),
        (400, 16, "Gemm", {"alpha": 0.5}),
        (400, 16, "MatMul", {}),
        (400, 30, "MatMul", {}),
    ],
)
def test_a_layer_that_alone_is_too_large_is_sliced(
    tmp_path: Path, inputs: int, outputs: int, op: str, attributes: dict[str, Any]
):
    """Slices have fewer outputs, or fewer inputs with partial sums: the chip has 12 crossbars of 16x16."""
    _, artifacts = in_rounds(dense(inputs, outputs, op, **attributes), tmp_path / "out")
    assert artifacts.rounds is not None
    assert artifacts.rounds.split == ("dense",)
    assert len(artifacts.segments) > 1


def test_a_slice_can_be_sliced_again():
    """Constants of both times have names of their own, and the model still computes the same."""
    model = dense(12, 12)
    first = LayerSlicer.from_proto(model)
    first.slice_layer(first.proto.graph.node[0], 2, 1)
    second = LayerSlicer.from_proto(first.proto)
    second.slice_layer(second.proto.graph.node[0], 2, 3)
    names = [t.name for t in second.proto.graph.initializer]
    assert len(set(names)) == len(names)
    inputs = {"x": random(1, 12)}
    np.testing.assert_allclose(golden(second.proto, inputs)["y"], golden(model, inputs)["y"], rtol=1e-5, atol=1e-6)


def test_a_convolution_is_sliced(tmp_path: Path):
    model = chain(1, channels=60)
    _, artifacts = in_rounds(model, tmp_path / "out")
    assert artifacts.rounds is not None
    assert artifacts.rounds.split == ("conv0",)


def _quantised(outputs: int) -> Any:
    nodes = [node("QuantizeLinear", "x s z", "q", name="quantise"), node("DequantizeLinear", "q s z", "d", name="d")]
    constants = {"s": np.float32(0.05).reshape(()), "z": np.uint8(120).reshape(())}
    x, ins = "d", 3
    for k in range(3):
        wide = np.random.default_rng(k).integers(-20, 20, (outputs, ins, 3, 3)).astype(np.int8)
        constants |= {f"wq{k}": wide, f"ws{k}": np.linspace(0.01, 0.03, outputs, dtype=np.float32)}
        constants |= {f"wz{k}": np.zeros(outputs, np.int8)}
        nodes += [
            node("DequantizeLinear", f"wq{k} ws{k} wz{k}", f"w{k}", name=f"weights{k}", axis=0),
            node("Conv", f"{x} w{k}", f"c{k}", name=f"conv{k}", pads=[1] * 4),
            node("QuantizeLinear", f"c{k} s z", f"q{k}", name=f"requantise{k}"),
            node("DequantizeLinear", f"q{k} s z", f"d{k}", name=f"back{k}"),
        ]
        x, ins = f"d{k}", outputs
    return make_model(nodes, {"x": [1, 3, 5, 5]}, [x], constants)


def test_integers_cross_and_stay_exact(tmp_path: Path):
    """Quantised tensors wait as integers: no round computes in floats what the model computes in integers."""
    program = raptor.compile(_quantised(8), **CHIP, rounds=True)
    program.save(tmp_path / "out", stream_format="pim")
    verdict = program.validate(samples=2)
    assert verdict.passed, verdict
    crossings = {
        c["name"]: c["type"] for c in json.loads((tmp_path / "out" / "segments.json").read_bytes())["crossings"]
    }
    assert {kind for name, kind in crossings.items() if name not in ("x", "d2")} == {"tensor(uint8)"}
    figures = [s.integers for s in verdict.segments]
    assert all(f is not None and f.compared > 0 and f.differing == 0 for f in figures)


def test_sliced_integers_stay_exact(tmp_path: Path):
    program = raptor.compile(_quantised(24), **CHIP | {"xbars_per_core": 10}, rounds=True)
    program.save(tmp_path / "out", stream_format="pim")
    assert rounds_of(tmp_path / "out")["split"]
    verdict = program.validate(samples=1)
    assert verdict.passed, verdict
    assert all(s.integers is None or s.integers.differing == 0 for s in verdict.segments)


def _group(core: int, first: int, xbars: int, content: str) -> GroupWrite:
    digest = hashlib.sha256(content.encode()).hexdigest()
    return GroupWrite(core=core, group=0, first=first, xbars=xbars, rows=1, cols=1, cells=1, sha256=digest)


def test_what_a_crossbar_still_holds_is_not_written():
    a, b, c = _group(0, 0, 2, "a"), _group(0, 0, 1, "b"), _group(1, 0, 1, "c")
    assert find_steady_writes([[a], [b]]) == [(a,), (b,)]
    assert find_steady_writes([[a], [c]]) == [(), ()]
    assert find_steady_writes([[a, c], [b]]) == [(a,), (b,)]
    assert find_steady_writes([[b], [a], [a]]) == [(b,), (a,), ()]


def test_equal_rounds_are_written_once(tmp_path: Path):
    """A layer with the weights of the one before finds them on the chip."""
    model = chain(3)
    for tensor in model.graph.initializer:
        if tensor.name == "w2":
            tensor.raw_data = next(t.raw_data for t in model.graph.initializer if t.name == "w1")
    in_rounds(model, tmp_path / "out", cores=1, xbars_per_core=8)
    rounds = rounds_of(tmp_path / "out")["rounds"]
    assert [bool(r["writes"]) for r in rounds] == [True, True, False]


def test_times_of_writing():
    def device(**write: Any) -> DeviceFile:
        return DeviceFile.model_validate(
            {"version": 1, "name": "d", "source": "test", "write": {"unit": "row", "ns": 10, **write}}
        )

    writes = [CrossbarWrite(0, 16, 64), CrossbarWrite(0, 8, 64), CrossbarWrite(1, 4, 64)]
    assert device().write.all_ns(writes, 2) == 160
    assert device(verify_pulses=2).write.all_ns(writes, 2) == 320
    assert device(at_once_per_core=1).write.all_ns(writes, 2) == 240
    assert device(at_once=1).write.all_ns(writes, 2) == 280
    assert device(at_once=2).write.all_ns(writes, 2) == 200
    assert device(bytes_per_ns=0.1).write.all_ns(writes, 2) == pytest.approx(3 * 64 * 2 / 8 / 0.1)
    assert device().write.all_ns([], 2) == 0


def test_fewest_writes(tmp_path: Path):
    """With the goal `writes` no plan writes more cells than with the goal time."""
    written = []
    for goal in ({}, {"optimize": "writes"}):
        folder = tmp_path / f"out{len(goal)}"
        in_rounds(chain(4, 8, 12), folder, **CHIP | {"cores": 8, "xbars_per_core": 4}, **goal)
        written.append(sum(w["cells"] for r in rounds_of(folder)["rounds"] for w in r["writes"]))
    assert written[1] < written[0]


@pytest.mark.parametrize("batch", [1, 8])
def test_the_batch_loop_is_the_interchange_of_occ(tmp_path: Path, batch: int):
    """A product of `batch` rows with 64x64 weights in tiles of 16x16: 16 tiles are written for all rows of a batch.

    OCC's naive loop writes rows x columns x reduction tiles; with the loop of the rows inside, columns x reduction.
    """
    in_rounds(dense(64, 64, "MatMul"), tmp_path / "out", cores=1, xbars_per_core=4, batch=batch, mapping="raptor")
    rounds = rounds_of(tmp_path / "out")["rounds"]
    assert sum(w["xbars"] for r in rounds for w in r["writes"]) == (64 // 16) * (64 // 16)
    figures = raptor.load(tmp_path / "out").simulate().reloading
    assert figures is not None
    assert figures.writes_per_cell == pytest.approx(64 * 64 / (4 * 16 * 16) / batch)


# Planted defects: what `rounds.json` says is not believed.


def _changed(out: Path, folder: Path, change: Any) -> Path:
    """Copies a program with another `rounds.json`, and a list that fits it."""
    import shutil

    shutil.copytree(out, folder)
    found = rounds_of(folder)
    change(found)
    content = json.dumps(found).encode()
    (folder / "rounds.json").write_bytes(content)
    listed = json.loads((folder / "segments.json").read_bytes())
    listed["files"]["rounds.json"] = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "segments.json").write_text(json.dumps(listed))
    return folder


def test_a_write_that_is_missing_is_found(out: Path, tmp_path: Path):
    def forget(found: dict[str, Any]) -> None:
        del found["rounds"][1]["writes"][0]

    with pytest.raises(UserError, match=r"segment_001: the matrix of core \d, group \d, is neither written nor left"):
        load_segmented(_changed(out, tmp_path / "out", forget))


def test_a_write_of_another_matrix_is_found(out: Path, tmp_path: Path):
    def other(found: dict[str, Any]) -> None:
        found["rounds"][1]["writes"][0]["sha256"] = digest_matrix(np.zeros((2, 2), np.float32))

    with pytest.raises(UserError, match=r"segment_001: .*, is not that of the program"):
        load_segmented(_changed(out, tmp_path / "out", other))


def test_rounds_of_other_segments_are_found(out: Path, tmp_path: Path):
    def swap(found: dict[str, Any]) -> None:
        found["rounds"].reverse()

    with pytest.raises(UserError, match="but the segments are segment_000"):
        raptor.simulate(_changed(out, tmp_path / "out", swap))


def test_rounds_that_changed_on_disk_are_refused(out: Path, tmp_path: Path):
    import shutil

    for name in ("rounds.json", "device.json"):
        folder = tmp_path / name / "out"
        shutil.copytree(out, folder)
        (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
        with pytest.raises(UserError, match=name):
            raptor.load(folder).validate(samples=1)


# Bad input: a sentence each.


def _chip_with_memory(folder: Path, size_bytes: int) -> Path:
    found = json.loads((Path(raptor.__file__).parent / "target" / "presets" / "bench.json").read_bytes())
    found["chip_config"]["global_memory_config"]["memory_size"] = size_bytes
    path = folder / "arch.json"
    path.write_text(json.dumps(found))
    return path


def test_a_batch_that_does_not_fit_the_memory(tmp_path: Path):
    """Eight channels of 6x6 wait before and behind a round: 576 bytes of a sample."""
    arch = _chip_with_memory(tmp_path, 2000)
    with pytest.raises(
        UserError, match=r"batch=4: .* 576 bytes .* 2,304 for the batch; the chip has 2,000; try batch=3"
    ):
        raptor.compile(chain(), **CHIP, arch=arch, rounds=True, batch=4)
    raptor.compile(chain(), **CHIP, arch=arch, rounds=True, batch=3)


def test_a_memory_that_is_too_small_for_one_sample(tmp_path: Path):
    with pytest.raises(UserError, match=r"try a larger global_memory_config.memory_size"):
        raptor.compile(chain(), **CHIP, arch=_chip_with_memory(tmp_path, 500), rounds=True)


def test_options_that_belong_to_rounds():
    for options, text in (
        ({"batch": 2}, "batch=: only with rounds=True"),
        ({"device": "sram"}, "device=: only with rounds=True"),
        ({"cuts": "best"}, "cuts=: only with rounds=True"),
        ({"rounds": True, "cuts": "worst"}, "cuts='worst': expected one of: best, first-fit, each-layer"),
        ({"optimize": "writes"}, "optimize='writes': only with rounds=True"),
        ({"rounds": True, "batch": 0}, "batch=0: expected a whole number, 1 to"),
        ({"rounds": True, "device": "nothing"}, "device nothing: no such file; give a file or one of: isaac"),
    ):
        with pytest.raises(UserError, match=text):
            raptor.compile(chain(), **CHIP, **options)


def test_a_layer_that_cannot_be_sliced(tmp_path: Path):
    """The steps of a recurrent layer share its weights, so it cannot be cut."""
    weights = {"w": random(1, 160, 40, seed=0), "r": random(1, 160, 40, seed=1)}
    model = make_model(
        [node("LSTM", "x w r", "y", name="memory", hidden_size=40)], {"x": [2, 1, 40]}, {"y": 4}, weights
    )
    with pytest.raises(
        UserError, match=r"memory: too large for a round of its own on 2 cores; 60 crossbars.*cores: need 10, have 2"
    ):
        raptor.compile(model, **CHIP, rounds=True)


def test_a_rate_is_for_rounds(tmp_path: Path):
    raptor.compile(chain(1), **CHIP | {"cores": 8}).save(tmp_path / "out")
    with pytest.raises(UserError, match=r"rate=5\.0: only for a program in rounds"):
        raptor.simulate(tmp_path / "out", rate=5)


def test_cuts_of_simpler_methods(tmp_path: Path):
    """Each method cuts as it says, and the others are the alternatives that are told."""
    counts = {}
    for cuts in ("best", "first-fit", "each-layer"):
        _, artifacts = in_rounds(chain(), tmp_path / cuts, cuts=cuts, batch=16, device="sram")
        assert artifacts.rounds is not None
        counts[cuts] = len(artifacts.rounds.rounds)
        names = {"best cuts", "longest rounds first", "one layer a round"}
        told = {one.name: one.batch_ns or math.inf for one in artifacts.rounds.alternatives}
        assert len(told) == 2
        assert told.keys() < names
        assert artifacts.rounds.estimated_ns >= told.get("best cuts", 0.0)
    assert counts["first-fit"] <= counts["best"] <= counts["each-layer"] == 4


@pytest.mark.parametrize("opset", [8, 13])
def test_layers_of_early_opsets_are_sliced_in_their_form(tmp_path: Path, opset: int):
    """Before opset 11, no axis is negative and a `Gemm` has a bias; before 10, `Slice` has no operands."""
    model = dense(40, 40)
    model.opset_import[0].version = opset
    model.ir_version = 8
    _, artifacts = in_rounds(model, tmp_path / "out", cores=1, xbars_per_core=4)
    assert artifacts.rounds is not None
    assert artifacts.rounds.split == ("dense",)
