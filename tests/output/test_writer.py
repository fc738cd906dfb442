"""Output directories: the same bytes every time, whole or not at all."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

import raptor
from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.mapping.decision import Matrix
from raptor.mapping.modes.line_unfolding import LineMatrix
from raptor.output import files, writer
from raptor.output.writer import StreamFormat, WeightFormat
from raptor.target import encoding, isa
from tests.paths import ROOT
from tests.pipeline import THESIS_CHIP, conv_model, passes
from tests.tiny_models import make_model, node, random

NODES = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Concat", "c x", "d", axis=1), node("Relu", "d", "y")]
MODEL = make_model(NODES, {"x": (1, 5, 4, 4)}, ["y", "c"], {"w": random(4, 5, 3, 3), "b": random(4)})


def compiled() -> "raptor.Program":
    return raptor.compile(MODEL, **THESIS_CHIP, mapping="raptor")


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def everything(folder: Path) -> list[str]:
    """Lists all names, also hidden ones."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


FORMATS = [("json", "json"), ("pim", "npz"), ("both", "npz")]


@pytest.mark.parametrize(("stream_format", "weight_format"), FORMATS)
def test_two_compilations_give_the_same_bytes(tmp_path: Path, stream_format: StreamFormat, weight_format: WeightFormat):
    first, second = (
        compiled().save(tmp_path / name, stream_format=stream_format, weight_format=weight_format) for name in "ab"
    )
    assert content(first) == content(second)


SCRIPT = """
import sys
from tests.output.test_writer import compiled, in_rounds
for weights in ("json", "npz"):
    compiled().save(f"{sys.argv[1]}/{weights}", stream_format="both", weight_format=weights)
in_rounds().save(f"{sys.argv[1]}/rounds")
"""


def in_rounds() -> "raptor.Program":
    """A model that is cut into segments, each with inner tensors."""
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("MaxPool", "r", "p", kernel_shape=[2, 2])]
    nodes += [node("Conv", "p v", "d", name="second"), node("Relu", "d", "e", name="last"), node("Tanh", "e", "y")]
    model = make_model(nodes, {"x": (1, 2, 9, 9)}, ["y"], {"w": random(12, 2, 3, 3), "v": random(12, 12, 2, 2)})
    return raptor.compile(model, xbar=16, xbars_per_core=4, cores=3, rounds=True)


def test_every_process_writes_the_same_bytes(tmp_path: Path):
    """The seed of Python's hashes must not matter."""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / seed)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=900)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def names(folder: Path) -> set[str]:
    return set(content(folder))


def test_the_files_of_an_output(tmp_path: Path):
    found = names(compiled().save(tmp_path / "out"))
    common = {
        "config.json",
        "memory.json",
        "layers.json",
        "steps.json",
        "manifest.json",
        "report.json",
        "arch.json",
        "network.json",
    }
    cores = {f"core_{i}.json" for i in range(16)}
    weights = {"weights/constants.npy", *(f"weights/core_{i}_weights.json" for i in range(8))}
    assert found >= common | cores | weights | {"model.onnx"}
    assert {name for name in found if "core_" in name} == cores | weights - {"weights/constants.npy"}


def test_formats_choose_the_files(tmp_path: Path):
    found = names(compiled().save(tmp_path / "out", stream_format="both", weight_format="npz"))
    assert {"core_0.json", "core_0.pim", "core_15.json", "core_15.pim", "weights/core_0_weights.npz"} <= found
    assert not any(name.endswith("weights.json") for name in found)


def test_idle_cores_have_empty_streams(tmp_path: Path):
    out = compiled().save(tmp_path / "out", stream_format="both")
    assert (out / "core_15.json").read_text() == "[]\n"
    assert len(encoding.decode_pim((out / "core_15.pim").read_bytes())) == 0


def test_json_and_pim_hold_the_same_streams(tmp_path: Path):
    out = compiled().save(tmp_path / "out", stream_format="both")
    recorded = passes(MODEL, **THESIS_CHIP).streams.cores
    for core, stream in recorded.items():
        text = encoding.decode_json((out / f"core_{core}.json").read_bytes())
        binary = encoding.decode_pim((out / f"core_{core}.pim").read_bytes())
        assert (
            [isa.format_record(r) for r in text]
            == [isa.format_record(r) for r in binary]
            == [isa.format_record(r) for r in stream.records]
        )


def weights_of(folder: Path, core: int) -> Iterator[Any]:
    path = folder / f"weights/core_{core}_weights.json"
    if path.exists():
        yield from (np.array(m, np.float32) for m in orjson.loads(path.read_bytes()).values())
    else:
        with np.load(folder / f"weights/core_{core}_weights.npz") as archive:
            yield from (archive[name] for name in archive.files)


def test_both_weight_formats_hold_the_layer_s_weights(tmp_path: Path):
    text = compiled().save(tmp_path / "json")
    binary = compiled().save(tmp_path / "npz", weight_format="npz")
    matrices = list(weights_of(text, 0))
    for a, b in zip(matrices, weights_of(binary, 0), strict=True):
        assert a.dtype == b.dtype == np.float32
        assert a.tobytes() == b.tobytes()
    # The first matrix: kernel position 0, input channels 0 to 2, filters 0 to 2.
    assert matrices[0].tolist() == random(4, 5, 3, 3)[:3, :3, 0, 0].T.tolist()


@pytest.mark.parametrize("mapping", ["rows", "raptor"])
def test_no_matrix_is_cut_before_it_is_written(mapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All matrices at once would take twice the memory of the weights."""
    cut: list[tuple[int, ...]] = []

    def counted(values: Callable[..., Any]) -> Callable[..., Any]:
        def cutting(*args: Any) -> Any:
            cut.append((found := values(*args)).shape)
            return found

        return cutting

    for kind in (LineMatrix, Matrix):
        monkeypatch.setattr(kind, "values", counted(kind.values))
    program = raptor.compile(MODEL, **THESIS_CHIP, mapping=mapping)
    assert not program.check()
    assert program.artifacts is not None
    shapes = [shape for matrices in program.artifacts.machine.weights.values() for shape in matrices.shapes]
    assert shapes
    assert not cut
    program.save(tmp_path / "out")
    assert sorted(cut) == sorted(shapes)


def test_the_manifest_lists_every_other_file(tmp_path: Path):
    out = compiled().save(tmp_path / "out")
    manifest = file_access.read_json_file(files.OutputManifest, out, files.MANIFEST)
    assert set(manifest.files) == names(out) - {"manifest.json"}
    assert list(manifest.files) == sorted(manifest.files)
    assert all(entry.size_bytes == (out / name).stat().st_size for name, entry in manifest.files.items())
    assert manifest.options == {
        "xbar": [3, 3],
        "cores": 16,
        "xbars_per_core": 5,
        "cell_bits": 8,
        "bits": 8,
        "mapping": "raptor",
        "shapes": {},
        "dims": {},
        "constants": {},
        "isa": "extended",
    }


def test_the_config_is_what_the_simulator_reads(tmp_path: Path):
    config = orjson.loads((compiled().save(tmp_path / "out") / "config.json").read_bytes())
    assert set(config) == {"core_cnt", "array_group_map"}
    assert config["core_cnt"] == 16
    assert config["array_group_map"]["core0"] == [1] * 5
    assert config["array_group_map"]["core15"] == []


def test_the_network_names_every_pair(tmp_path: Path):
    network = orjson.loads((compiled().save(tmp_path / "out") / "network.json").read_bytes())
    ids = {*map(str, range(16)), "-10"}
    for table in ("latency", "energy"):
        assert set(network[table]) == ids
        assert all(set(row) == ids - {source} for source, row in network[table].items())
    # A mesh of 4x4: one hop 4 ns, the diagonal of six hops 14 ns.
    assert (network["latency"]["0"]["1"], network["latency"]["0"]["15"]) == (4, 14)


def test_the_model_is_kept_as_it_was(tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    out = raptor.compile(path, **THESIS_CHIP).save(tmp_path / "out")
    assert (out / "model.onnx").read_bytes() == path.read_bytes()


def test_permissions_are_those_of_any_new_file(tmp_path: Path):
    out = compiled().save(tmp_path / "out")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/file").write_text("")
    for made, plain in ((out, "plain"), (out / "weights", "plain"), (out / "config.json", "plain/file")):
        assert made.stat().st_mode == (tmp_path / plain).stat().st_mode


# Where it may be written


def test_missing_parents_are_made(tmp_path: Path):
    assert compiled().save(tmp_path / "a/b/out").is_dir()


def test_an_empty_directory_may_be_used(tmp_path: Path):
    (tmp_path / "out").mkdir()
    assert "manifest.json" in names(compiled().save(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["out"]


def test_an_earlier_output_is_kept_unless_forced(tmp_path: Path):
    out = compiled().save(tmp_path / "out")
    before = content(out)
    other = raptor.compile(conv_model((1, 3, 4, 4), 3), **THESIS_CHIP)
    with pytest.raises(UserError, match="exists; choose another with folder=, or replace it with force=True"):
        other.save(out)
    assert content(out) == before
    other.save(out, force=True)
    assert content(out) != before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_of_something_else_is_never_replaced(tmp_path: Path, force: bool):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not an output of raptor"):
        compiled().save(tmp_path / "out", force=force)
    assert everything(tmp_path) == ["out", "out/thesis.tex"]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_or_link_is_never_replaced(tmp_path: Path, force: bool):
    (tmp_path / "file").write_text("content")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("file", "link"):
        with pytest.raises(UserError, match="exists and is not a directory"):
            compiled().save(tmp_path / name, force=force)
    assert everything(tmp_path) == ["file", "link", "real"]


def test_an_unwritable_path(tmp_path: Path):
    """Under a regular file, which stops even root."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        compiled().save(tmp_path / "file/out")
    assert everything(tmp_path) == ["file"]


def test_nothing_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def disk_full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "_npy", disk_full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        compiled().save(tmp_path / "out")
    assert everything(tmp_path) == []


@pytest.mark.parametrize("reason", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_file_named_by_an_option_is_written_whole_or_not_at_all(tmp_path: Path, reason: BaseException):
    def write(content: bytes) -> None:
        with file_access.open_atomic("--json", tmp_path / "report.json") as file:
            file.write(content)
            file.flush()
            if content == b"half":
                raise reason

    with pytest.raises((UserError, KeyboardInterrupt)):
        write(b"half")
    assert everything(tmp_path) == []
    write(b"whole")
    with pytest.raises((UserError, KeyboardInterrupt)):
        write(b"half")
    assert content(tmp_path) == {"report.json": b"whole"}


def test_what_is_no_file_is_not_replaced(tmp_path: Path):
    """`--json /dev/stdout`, a pipe that somebody reads, a link to where the file is to be."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    file_access.write_atomic("--json", tmp_path / "link", b"content")
    file_access.write_atomic("--json", Path(os.devnull), b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"content"
    assert not Path(os.devnull).is_file()
    with pytest.raises(UserError, match=r"--json .*: cannot be written: Is a directory"):
        file_access.write_atomic("--json", tmp_path, b"content")


def test_the_earlier_output_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = content(compiled().save(tmp_path / "out"))

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_npy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled().save(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def test_the_earlier_output_stays_when_it_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = content(compiled().save(tmp_path / "out"))
    rename = Path.rename

    def fails_once_moved(self: Path, target: Path) -> Path:
        if target == tmp_path / "out":
            raise OSError(16, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once_moved)
    with pytest.raises(UserError, match="Device or resource busy"):
        compiled().save(tmp_path / "out", force=True)
    assert content(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def test_a_name_with_a_slash_or_blank_at_the_end(tmp_path: Path):
    assert compiled().save(f"{tmp_path}/my out/").name == "my out"
    assert os.listdir(tmp_path) == ["my out"]


# Two at once


HOLDER = """
import sys, pathlib
from raptor.output import writer
with writer.reserve_folder(pathlib.Path(sys.argv[1]), force=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts another process that is compiling into `folder`."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("force", [False, True])
def test_the_second_of_two_at_once_is_refused(tmp_path: Path, force: bool):
    out = tmp_path / "out"
    if force:
        compiled().save(out)
    before = everything(tmp_path)
    with another(out), pytest.raises(UserError, match="out: is being written by another raptor; wait until"):
        compiled().save(out, force=force)
    assert set(everything(tmp_path)) == {*before, ".out.lock"}
    with another(tmp_path / "other"):
        compiled().save(out, force=force)


def test_a_lock_of_the_dead_holds_nobody(tmp_path: Path):
    """SIGKILL leaves the file, and the next takes it away."""
    with another(tmp_path / "out") as process:
        process.kill()
        process.wait()
        assert everything(tmp_path) == [".out.lock"]
        compiled().save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_of_many_at_once_one_writes(tmp_path: Path):
    """Threads, through the Python API: one is done, the others are refused, before or after."""
    program = compiled()
    copies = [raptor.Program(program.report, program.artifacts) for _ in range(8)]

    def save(copy: "raptor.Program") -> str:
        try:
            return str(copy.save(tmp_path / "out"))
        except UserError as e:
            return str(e)

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(save, copies))
    assert ends.count(str(tmp_path / "out")) == 1
    assert all("another raptor" in end or "exists" in end for end in ends if end != str(tmp_path / "out"))
    assert os.listdir(tmp_path) == ["out"]
    assert content(tmp_path / "out") == content(compiled().save(tmp_path / "again"))


@pytest.mark.parametrize("force", [False, True])
def test_what_was_written_meanwhile_is_not_replaced(tmp_path: Path, force: bool):
    """Another program, which does not use the lock, writes the directory."""
    out = tmp_path / "out"

    def write() -> None:
        with writer.replace_folder(out, force=force):
            out.mkdir()
            (out / "thesis.tex").write_text("years of work")

    with pytest.raises(UserError, match="exists and is not an output of raptor"):
        write()
    assert everything(tmp_path) == ["out", "out/thesis.tex"]


def test_where_there_are_no_locks_it_is_written_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    compiled().save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path):
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".out.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="out: cannot be written"):
        compiled().save(tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "content"
