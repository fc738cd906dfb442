"""Mutations of a good output directory: each makes the validator fail (1), refuse (2) or find a deadlock (3)."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raptor
from raptor.common.errors import RaptorError
from raptor.tools.cli import app
from tests.pipeline import THESIS_CHIP
from tests.tiny_models import make_model, node, random
from validator.validate import validate

FAIL, REFUSE, DEADLOCK = 1, 2, 3

Instruction = dict[str, Any]


@dataclass(frozen=True)
class Directory:
    """An output directory under attack."""

    path: Path

    def read(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())

    def write(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value))

    def stream(self, core: int) -> list[Instruction]:
        return self.read(f"core_{core}.json")

    def set_stream(self, core: int, stream: list[Instruction]) -> None:
        self.write(f"core_{core}.json", stream)

    def seal(self) -> None:
        """Updates the manifest, so that it does not give the change away; missing files are no longer listed."""
        manifest = self.read("manifest.json")
        files = {name: self.path / name for name in manifest["files"]}
        manifest["files"] = {
            name: {"size_bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for name, path in files.items()
            if path.exists()
        }
        self.write("manifest.json", manifest)


def verdict(out: Directory) -> int:
    """The exit status of `raptor validate`."""
    try:
        return 0 if validate(out.path).verdict == "pass" else FAIL
    except RaptorError as e:
        return e.exit_status


def message(out: Directory) -> str:
    with pytest.raises(RaptorError) as caught:
        validate(out.path)
    return str(caught.value)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The thesis's layer with a bias and an inner value as a second output, on twelve of sixteen cores."""
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("Add", "r k", "y")]
    constants = {"w": random(4, 8, 3, 3), "b": random(4), "k": random(1, 4, 4, 4)}
    model = make_model(nodes, {"x": (1, 8, 4, 4)}, ["y", "c"], constants)
    program = raptor.compile(model, **THESIS_CHIP, mapping="raptor")
    return program.save(tmp_path_factory.mktemp("pristine") / "out")


@pytest.fixture
def out(pristine: Path, tmp_path: Path) -> Directory:
    return Directory(Path(shutil.copytree(pristine, tmp_path / "out")))


def positions(stream: list[Instruction], *ops: str) -> list[int]:
    return [pc for pc, instruction in enumerate(stream) if instruction["op"] in ops]


def change_first(out: Directory, at: int, op: str, **changes: Any) -> None:
    """Changes the first instruction of a kind, and seals the directory."""
    stream = out.stream(at)
    stream[positions(stream, op)[0]] |= changes
    out.set_stream(at, stream)
    out.seal()


def test_the_directory_is_good(out: Directory):
    assert verdict(out) == 0
    out.seal()
    assert verdict(out) == 0


# Weights and constants


@pytest.mark.parametrize("core", range(11))
def test_two_matrices_of_a_core_swapped(out: Directory, core: int):
    name = f"weights/core_{core}_weights.json"
    weights = out.read(name)
    weights["0"], weights["1"] = weights["1"], weights["0"]
    out.write(name, weights)
    out.seal()
    assert verdict(out) == FAIL


def test_matrices_of_two_cores_swapped(out: Directory):
    names = [f"weights/core_{core}_weights.json" for core in (0, 4)]
    first, second = (out.read(name) for name in names)
    first["2"], second["2"] = second["2"], first["2"]
    for name, weights in zip(names, (first, second), strict=True):
        out.write(name, weights)
    out.seal()
    assert verdict(out) == FAIL


def test_one_weight_changed(out: Directory):
    weights = out.read("weights/core_5_weights.json")
    weights["3"][1][0] *= 1.01
    out.write("weights/core_5_weights.json", weights)
    out.seal()
    assert verdict(out) == FAIL


def test_a_matrix_transposed(out: Directory):
    weights = out.read("weights/core_0_weights.json")
    weights["0"] = np.array(weights["0"]).T.tolist()
    out.write("weights/core_0_weights.json", weights)
    out.seal()
    assert verdict(out) == FAIL


@pytest.mark.parametrize(
    ("group", "value", "text"),
    [
        ("4", None, "no matrix for array group 4"),
        ("5", [[1.0]], "a matrix for '5', not a group"),
        ("0", [[1.0] * 4] * 3, "does not fit 3 rows"),
        ("0", [[1.0] * 3] * 4, "does not fit 3 rows"),
        ("0", [[1.0, 2.0], [1.0]], "rows of one length"),
        ("0", [[1e39] * 3] * 3, "NaN or infinity"),
    ],
    ids=["missing", "extra", "wide", "high", "ragged", "infinite"],
)
def test_odd_weights(out: Directory, group: str, value: Any, text: str):
    weights = out.read("weights/core_0_weights.json")
    weights.pop(group, None)
    if value is not None:
        weights[group] = value
    out.write("weights/core_0_weights.json", weights)
    out.seal()
    if text == "does not fit 3 rows" and len(value) == 3:
        # Four columns of one-bit weights would fit; of eight bits they do not.
        text = "more columns than the crossbars hold"
    assert text in message(out)


@pytest.mark.parametrize("byte", [-1, -2, -30])
def test_a_bit_flipped_in_the_constants(out: Directory, byte: int):
    """Sign and exponent of the last constant, and one bit of an inner one."""
    path = out.path / "weights/constants.npy"
    content = bytearray(path.read_bytes())
    content[byte] ^= 0x40
    path.write_bytes(content)
    assert "changed since it was compiled" in message(out)
    out.seal()
    assert verdict(out) == FAIL


# Addresses


def address_loads(stream: list[Instruction]) -> Iterator[int]:
    """Loads of the addresses that outputs and inputs have; where a scratch buffer lies does not matter."""
    return (pc for pc in positions(stream, "sldi") if stream[pc]["rd"] in (1, 2))


@pytest.mark.parametrize("core", [3, 10])
@pytest.mark.parametrize("delta", [1, -1])
def test_any_address_off_by_one_element(out: Directory, core: int, delta: int):
    good = out.stream(core)
    loads = list(address_loads(good))
    assert len(loads) > 20
    unseen = [pc for pc in loads[:: len(loads) // 20] if not _caught(out, core, _moved(good, pc, delta))]
    assert unseen == []


def _moved(stream: list[Instruction], pc: int, delta: int) -> list[Instruction]:
    return [{**i, "imm": i["imm"] + delta} if k == pc else i for k, i in enumerate(stream)]


def _caught(out: Directory, core: int, stream: list[Instruction]) -> bool:
    out.set_stream(core, stream)
    out.seal()
    return verdict(out) != 0


@pytest.mark.parametrize("core", [3, 10])
def test_any_addition_dropped(out: Directory, core: int):
    good = out.stream(core)
    additions = positions(good, "vvadd")
    assert len(additions) > 10
    unseen = [pc for pc in additions[::3] if not _caught(out, core, good[:pc] + good[pc + 1 :])]
    assert unseen == []


@pytest.mark.parametrize("op", ["mvmul", "recv", "ld", "lldi"])
def test_an_instruction_dropped(out: Directory, op: str):
    core = next(c for c in range(11) if positions(out.stream(c), op))
    good = out.stream(core)
    pc = positions(good, op)[0]
    assert _caught(out, core, good[:pc] + good[pc + 1 :])


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("delta", [1, -1, 16])
def test_a_tile_in_memory_json_moved(out: Directory, kind: str, delta: int):
    memory = out.read("memory.json")
    memory[kind][0]["tiles"][1]["address"] += delta
    out.write("memory.json", memory)
    out.seal()
    assert verdict(out) == FAIL


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m["outputs"][0]["tiles"][0].update(address=10**6), "leave the global memory"),
        (lambda m: m["outputs"][0]["tiles"].pop(), "tiles hold row 0 column 0 of channel 3, expected 1"),
        (lambda m: m["outputs"][0]["tiles"][0].update(channels=[0, 4]), "2 tiles hold"),
        (lambda m: m["inputs"][0]["tiles"][0].update(channels=[3, 3]), "of an image with 8 channels"),
        (lambda m: m["inputs"][0].update(shape=[1, 8, 4, 5]), "differ in size"),
        (lambda m: m["inputs"][0].update(channel_axis=4), "channel_axis 4 of an image_shape"),
        (lambda m: m["constants"].update(elements=3), "constants.npy"),
        (lambda m: m["constants"].update(address=10**6), "leave the global memory"),
        (lambda m: m.update(element_bytes=2), "element_bytes 2"),
        (lambda m: m["local_bytes"].pop(), "15 entries for 16 cores"),
        (lambda m: m.update(size_bytes=2**60), "more than the limit"),
        (lambda m: m["inputs"][0].update(name="z"), "has no input 'z'"),
        (lambda m: m["inputs"].pop(), "is not in memory.json"),
        (lambda m: m.update(unknown=1), "unknown"),
        (lambda m: m.pop("outputs"), "outputs"),
    ],
)
def test_an_impossible_memory_map(out: Directory, change: Callable[[Any], object], text: str):
    memory = out.read("memory.json")
    change(memory)
    out.write("memory.json", memory)
    out.seal()
    assert text in message(out)


def test_a_local_memory_too_small(out: Directory):
    memory = out.read("memory.json")
    memory["local_bytes"][0] -= 2
    out.write("memory.json", memory)
    out.seal()
    assert "of local memory of core 0" in message(out)


# Streams


@pytest.mark.parametrize("partner", [2, 15])
def test_a_send_to_the_wrong_core(out: Directory, partner: int):
    change_first(out, 0, "send", core=partner)
    assert verdict(out) == DEADLOCK
    assert "core 0 at" in message(out)


def test_a_send_to_itself_or_to_no_core(out: Directory):
    change_first(out, 0, "send", core=0)
    assert "a core cannot exchange with itself" in message(out)
    change_first(out, 0, "send", core=16)
    assert "the program has 16 cores" in message(out)


def test_a_receive_from_the_wrong_core(out: Directory):
    change_first(out, 1, "recv", core=2)
    assert verdict(out) == DEADLOCK


def test_a_message_of_another_size(out: Directory):
    change_first(out, 0, "send", size=47)
    assert "the partner's size is" in message(out)


def test_both_ends_of_a_message_shorter(out: Directory):
    change_first(out, 0, "send", size=47)
    change_first(out, 1, "recv", size=47)
    assert verdict(out) == FAIL


@pytest.mark.parametrize(("op", "key"), [("ld", "size"), ("st", "size"), ("vvadd", "len"), ("lldi", "len")])
def test_a_size_changed(out: Directory, op: str, key: str):
    core = next(c for c in range(11) if positions(out.stream(c), op))
    stream = out.stream(core)
    pc = positions(stream, op)[0]
    change_first(out, core, op, **{key: stream[pc][key] - 1 or 2})
    assert verdict(out) in (FAIL, REFUSE)


def test_another_array_group(out: Directory):
    change_first(out, 0, "mvmul", group=3)
    assert verdict(out) == FAIL


def test_an_array_group_that_is_not_there(out: Directory):
    change_first(out, 0, "mvmul", group=5)
    assert "core 0 has 5 array groups" in message(out)


def test_a_relu_too_many(out: Directory):
    change_first(out, 0, "mvmul", relu=1)
    assert verdict(out) == FAIL


def test_widths_other_than_those_of_the_program(out: Directory):
    change_first(out, 0, "setbw", ibiw=16)
    assert "elements of this program have 8 bits" in message(out)


def test_no_widths(out: Directory):
    out.set_stream(0, out.stream(0)[1:])
    out.seal()
    assert "no setbw before it" in message(out)


def test_a_stream_that_ends_early(out: Directory):
    """The last instruction, a send, is missing: the partner waits for ever."""
    out.set_stream(0, out.stream(0)[:-1])
    out.seal()
    assert verdict(out) == DEADLOCK
    assert "core 1 at" in message(out)


def test_an_output_that_is_never_stored(out: Directory):
    core = next(c for c in range(11) if out.stream(c)[-1]["op"] == "st")
    out.set_stream(core, out.stream(core)[:-1])
    out.seal()
    assert verdict(out) == FAIL


def test_a_stream_that_goes_on(out: Directory):
    stream = out.stream(0)
    out.set_stream(0, [*stream, stream[-1]])
    out.seal()
    assert verdict(out) == DEADLOCK


def test_an_empty_stream(out: Directory):
    out.set_stream(0, [])
    out.seal()
    assert verdict(out) == DEADLOCK


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        ({"op": "sldi", "rd": 32, "imm": 0}, "no register 32"),
        ({"op": "sldi", "rd": -1, "imm": 0}, "no register -1"),
        ({"op": "jump", "rd": 0}, "unknown op 'jump'"),
        ({"rd": 0}, "op is missing"),
        ({"op": "sldi", "rd": 0, "imm": 2**31}, "does not fit 32 bits"),
        ({"op": "sldi", "rd": 0, "imm": 0, "group": 1}, "sldi has no field 'group'"),
        ({"op": "sldi", "rd": 0, "imm": 1.5}, "expected an integer"),
        ({"op": "sadd", "rd": 0, "rs1": 31, "rs2": 31}, "reads register 31, which nothing has written"),
        ("sldi", "expected an object"),
    ],
)
def test_an_instruction_without_meaning(out: Directory, instruction: Any, text: str):
    out.set_stream(0, [instruction, *out.stream(0)])
    out.seal()
    found = message(out)
    assert text in found
    assert "core_0.json: instruction 0" in found or "core 0, instruction 0" in found


def test_a_stream_that_is_not_json(out: Directory):
    (out.path / "core_0.json").write_text('[{"op":"sldi"')
    out.seal()
    assert "core_0.json: not a JSON file" in message(out)


# Files


@pytest.mark.parametrize("name", ["core_3.json", "weights/core_3_weights.json", "memory.json", "model.onnx"])
def test_a_file_missing(out: Directory, name: str):
    (out.path / name).unlink()
    assert "missing" in message(out)
    out.seal()
    assert verdict(out) == REFUSE


def test_no_manifest(out: Directory):
    (out.path / "manifest.json").unlink()
    assert "manifest.json: missing" in message(out)


def test_a_stream_too_many(out: Directory):
    shutil.copy(out.path / "core_0.json", out.path / "core_16.json")
    assert "core_16.json: a stream that manifest.json does not list" in message(out)
    manifest = out.read("manifest.json")
    manifest["files"]["core_16.json"] = manifest["files"]["core_0.json"]
    out.write("manifest.json", manifest)
    assert "core_16.json: not a stream of cores 0 to 15" in message(out)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "weights/../../secret", "a\\b", "./core_0.json"])
def test_a_path_that_leaves_the_directory(out: Directory, name: str):
    manifest = out.read("manifest.json")
    manifest["files"][name] = manifest["files"]["core_0.json"]
    out.write("manifest.json", manifest)
    assert "leaves the directory" in message(out)


@pytest.mark.parametrize("target", ["core_0.json", "weights"])
def test_a_link(out: Directory, tmp_path: Path, target: str):
    path = out.path / target
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "not a regular file of this directory" in message(out)


def test_a_file_of_another_size(out: Directory):
    with (out.path / "core_0.json").open("a") as f:
        f.write(" ")
    assert "bytes, but manifest.json says" in message(out)


def test_a_file_of_another_hash(out: Directory):
    stream = (out.path / "core_0.json").read_bytes()
    (out.path / "core_0.json").write_bytes(stream.replace(b'"relu":0', b'"relu":1', 1))
    assert "changed since it was compiled" in message(out)


@pytest.mark.parametrize(
    ("groups", "text"),
    [([1, 1, 1, 1], "a matrix for '4', not a group"), ([1] * 6, "core 0 uses 6 crossbars, arch.json has 5")],
    ids=["fewer", "more"],
)
def test_a_config_with_other_groups(out: Directory, groups: list[int], text: str):
    config = out.read("config.json")
    config["array_group_map"]["core0"] = groups
    out.write("config.json", config)
    out.seal()
    assert text in message(out)


@pytest.mark.parametrize("count", [15, 17])
def test_a_config_with_another_number_of_cores(out: Directory, count: int):
    config = out.read("config.json")
    config["core_cnt"] = count
    out.write("config.json", config)
    out.seal()
    assert f"core_cnt={count} disagree" in message(out)


def test_a_model_other_than_the_one_compiled(out: Directory):
    nodes = [node("Relu", "x", "c"), node("Relu", "c", "y")]
    other = make_model(nodes, {"x": (1, 8, 4, 4)}, ["y", "c"])
    (out.path / "model.onnx").write_bytes(other.SerializeToString())
    assert "model.onnx" in message(out)
    out.seal()
    assert verdict(out) != 0


def test_a_limit_of_instructions(out: Directory, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        app.main(["validate", str(out.path), "--max-steps", "100"])
    assert stopped.value.code == REFUSE
    assert "the limit of instructions is reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mutate", "status"),
    [
        (lambda out: None, 0),
        (lambda out: change_first(out, 0, "mvmul", group=3), FAIL),
        (lambda out: change_first(out, 0, "mvmul", group=9), REFUSE),
        (lambda out: change_first(out, 0, "send", core=15), DEADLOCK),
    ],
)
def test_exit_status(
    out: Directory, mutate: Callable[[Directory], None], status: int, capsys: pytest.CaptureFixture[str]
):
    mutate(out)
    with pytest.raises(SystemExit) as stopped:
        app.main(["validate", str(out.path)])
    assert stopped.value.code == status
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    if status in (0, FAIL):
        assert ("PASS" if status == 0 else "FAIL") in captured.out
    else:
        assert captured.err.startswith("raptor: error: ")
