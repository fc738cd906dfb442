"""Directories that are refused, and why."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.common.errors import UserError
from raptor.target import encoding
from tests.validator.builder import Builder, address, op, place, seal, stream
from validator.errors import ProgramError
from validator.load.output_directory import load_output

W = np.ones((4, 3), np.float32)
SETBW = op("setbw", ibiw=8, obiw=8)


def good(**changes: Any) -> Builder:
    """Builds a program with two cores, one group each; input, output and constants."""
    core = stream(SETBW, address(1, 0), address(2, 8), op("mvmul", rd=2, rs1=1, mbiw=8, group=0))
    values: dict[str, Any] = {
        "cores": [core, core],
        "matrices": {0: [W], 1: [W]},
        "inputs": [place("x", [4], 0)],
        "outputs": [place("y", [4, 2], 8)],
        "constants": np.arange(3, dtype=np.float32),
        "constants_at": 20,
    }
    return Builder(**(values | changes))


def test_a_good_one(tmp_path: Path) -> None:
    program = load_output(good().write(tmp_path))
    assert program.core_count == 2
    assert program.instruction_count == 8
    np.testing.assert_array_equal(program.weights.matrix(1, 0), W)
    np.testing.assert_array_equal(program.constants, [0, 1, 2])
    assert program.layers is None


def test_pim_and_npz_are_read_alike(tmp_path: Path) -> None:
    left, right = load_output(good().write(tmp_path / "a")), load_output(good(pim=True, npz=True).write(tmp_path / "b"))
    for a, b in zip(left.streams, right.streams, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(left.weights.values, right.weights.values)


def test_pim_wins_over_json(tmp_path: Path) -> None:
    builder = good().make()
    builder.files["core_0.pim"] = encoding.encode_pim(stream(op("nop")))
    assert len(load_output(builder.write(tmp_path)).streams[0]) == 1


def refused(folder: Path, message: str, kind: type[UserError] = UserError) -> None:
    with pytest.raises(kind) as caught:
        load_output(folder)
    assert message in str(caught.value)


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Builder], None]:
    def apply(builder: Builder) -> None:
        value = json.loads(builder.files[name])
        builder.files[name] = json.dumps(change(value) or value).encode()

    return apply


def put(name: str, content: bytes | str | None) -> Callable[[Builder], None]:
    def apply(builder: Builder) -> None:
        if content is None:
            del builder.files[name]
        else:
            builder.files[name] = content.encode() if isinstance(content, str) else content

    return apply


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


W0 = "weights/core_0_weights.json"
Edit = Callable[[Builder], None]
CHANGES: dict[str, tuple[Edit, str]] = {
    "config missing": (put("config.json", None), "config.json is not in the list of files"),
    "config cut": (put("config.json", '{"core_cnt": 2'), "not a file this version can read"),
    "config type": (edit("config.json", lambda c: c.update(core_cnt="many")), "core_cnt"),
    "config cores": (edit("config.json", lambda c: c.update(core_cnt=3)), "disagree on core2"),
    "config negative": (edit("config.json", lambda c: c.update(core_cnt=-1)), "core_cnt"),
    "config huge": (edit("config.json", lambda c: c.update(core_cnt=2**40)), "core_cnt"),
    "too many crossbars": (
        edit("config.json", lambda c: c["array_group_map"].update(core1=[65])),
        "core 1 uses 65 crossbars, arch.json has 64",
    ),
    "group without weights": (
        edit("config.json", lambda c: c["array_group_map"].update(core1=[1, 1])),
        "no matrix for array group 1 of core 1",
    ),
    "arch cores": (
        edit("arch.json", lambda a: a["chip_config"].update(core_cnt=1)),
        "config.json: 2 cores, but arch.json has 1",
    ),
    "arch key": (edit("arch.json", lambda a: a.update(chip=1)), "arch.json"),
    "memory version": (edit("memory.json", lambda m: m.update(version=2)), "version"),
    "memory key": (edit("memory.json", lambda m: m.update(extra=2)), "extra"),
    "memory nan": (put("memory.json", "NaN"), "memory.json"),
    "element width": (edit("memory.json", lambda m: m.update(element_bytes=2)), "element_bytes 2 does not hold"),
    "local sizes": (edit("memory.json", lambda m: m.update(local_bytes=[1])), "local_bytes has 1 entries for 2 cores"),
    "local huge": (edit("memory.json", lambda m: m.update(local_bytes=[2**31 - 1] * 2)), "more than the limit of 8.0"),
    "global huge": (edit("memory.json", lambda m: m.update(size_bytes=2**60)), "GiB of memory, more than the limit"),
    "constants outside": (
        edit("memory.json", lambda m: m.update(constants={"address": 254, "elements": 3})),
        "constants: 3 elements at 254 leave the global memory of 256 bytes",
    ),
    "input outside": (edit("memory.json", lambda m: m.update(inputs=[place("x", [4], 253)])), "input 'x': 4 elements"),
    "two inputs": (
        edit("memory.json", lambda m: m.update(inputs=[place("x", [4], 0)] * 2)),
        "two inputs are called 'x'",
    ),
    "image size": (
        edit("memory.json", lambda m: m["inputs"][0].update(image_shape=[5])),
        "shape (4,) and image_shape (5,) differ in size",
    ),
    "image huge": (
        edit("memory.json", lambda m: m["inputs"][0].update(image_shape=[2**31 - 1] * 3, shape=[2**31 - 1] * 3)),
        "more than the limit",
    ),
    "image scalar": (
        edit("memory.json", lambda m: m["inputs"][0].update(image_shape=[], shape=[])),
        "channel_axis 0 of an image_shape of 0 dimensions",
    ),
    "channel axis": (edit("memory.json", lambda m: m["inputs"][0].update(channel_axis=1)), "channel_axis 1 of an"),
    "tile outside": (
        edit("memory.json", lambda m: m["inputs"][0]["tiles"][0].update(channels=[0, 5])),
        "input 'x': tile c0:5 r0:1 of an image with 4 channels, 1 rows",
    ),
    "tile empty": (edit("memory.json", lambda m: m["inputs"][0]["tiles"][0].update(channels=[2, 2])), "tile c2:2"),
    "output not covered": (
        edit("memory.json", lambda m: m["outputs"][0]["tiles"][0].update(channels=[0, 3])),
        "output 'y': 0 tiles hold row 0 column 0 of channel 3, expected 1",
    ),
    "output covered twice": (
        edit("memory.json", lambda m: m["outputs"][0]["tiles"].append(m["outputs"][0]["tiles"][0])),
        "output 'y': 2 tiles hold row 0 column 0 of channel 0",
    ),
    "stream missing": (put("core_1.json", None), "core_1.json is not in the list of files"),
    "stream cut": (put("core_1.json", "[{"), "core_1.json: not a JSON file"),
    "stream op": (put("core_1.json", '[{"op":"nop"},{"op":"hop"}]'), "core_1.json: instruction 1: unknown op 'hop'"),
    "stream utf8": (put("core_1.json", b'[{"op":"\xff"}]'), "core_1.json: not a JSON file"),
    "stream pim": (put("core_1.pim", b"PIMB"), "core_1.pim: not a .pim file"),
    "stream of no core": (put("core_2.json", "[]"), "core_2.json: not a stream of cores 0 to 1"),
    "stream alias": (put("core_00.json", "[]"), "core_00.json: not a stream"),
    "weights missing": (put(W0, None), "missing, but core 0 has 1 array groups"),
    "weights shape": (put(W0, '{"0": [[1, 2], [3]]}'), "expected rows of one length, found lengths [1, 2]"),
    "weights empty": (put(W0, '{"0": []}'), "expected rows of one length"),
    "weights empty row": (put(W0, '{"0": [[]]}'), "shape (1, 0) does not fit"),
    "weights rows": (put(W0, json.dumps({"0": [[1]] * 9})), "shape (9, 1) does not fit 8 rows and 64 columns"),
    "weights cols": (put(W0, json.dumps({"0": [[1] * 65]})), "shape (1, 65) does not fit"),
    "weights extra": (put(W0, '{"0": [[1]], "1": [[1]]}'), "a matrix for '1', not a group of core 0"),
    "weights other key": (put(W0, '{"00": [[1]]}'), "no matrix for array group 0 of core 0"),
    "weights text": (put(W0, '{"0": [["1"]]}'), "expected an object of matrices"),
    "weights list": (put(W0, "[]"), "expected an object of matrices"),
    "weights nan": (put(W0, '{"0": [[NaN]]}'), "expected an object of matrices"),
    "weights overflow": (put(W0, '{"0": [[1e39]]}'), "beyond float32"),
    "weights infinite": (put(W0, '{"0": [[1e999]]}'), "core_0_weights.json"),
    "weights deep": (put(W0, '{"0":' + "[" * 100_000), "expected an object of matrices"),
    "mvmul too wide": (put(W0, json.dumps({"0": [[1] * 9]})), "more columns than the crossbars hold"),
    "constants size": (put("weights/constants.npy", npy(np.zeros(4, np.float32))), "expected shape (3,), found (4,)"),
    "constants type": (put("weights/constants.npy", npy(np.zeros(3))), "expected <f4 (float32) in C order, found <f8"),
    "constants cut": (put("weights/constants.npy", npy(np.zeros(3, np.float32))[:-1]), "takes 12 bytes, found less"),
    "constants long": (put("weights/constants.npy", npy(np.zeros(3, np.float32)) + b"1"), "takes 12 bytes, found more"),
    "constants nan": (put("weights/constants.npy", npy(np.full(3, np.nan, np.float32))), "holds NaN"),
    "constants object": (put("weights/constants.npy", npy(np.array([1, None, 3]))), "expected <f4 (float32)"),
    "constants text": (put("weights/constants.npy", "hello"), "not a .npy array"),
    "constants missing": (put("weights/constants.npy", None), "constants.npy is not in the list of files"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refused(tmp_path: Path, name: str) -> None:
    change, message = CHANGES[name]
    builder = good().make()
    change(builder)
    refused(builder.write(tmp_path), message)


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return buffer.getvalue()


def huge_header() -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**20, 2**20)})
    return header.getvalue()


ARCHIVES = {
    "text": (b"hello", "not a .npz file"),
    "cut": (npz(**{"0_npy": npy(W)})[:-30], "not a .npz file"),
    "wrong name": (npz(**{"1_npy": npy(W)}), "no matrix for array group 0 of core 0"),
    "no suffix": (npz(**{"0": npy(W)}), "expected one .npy member per group"),
    "type": (npz(**{"0_npy": npy(W.astype(np.float64))}), "expected <f4 (float32) in C order, found <f8"),
    "order": (npz(**{"0_npy": npy(np.asfortranarray(W))}), "in Fortran order"),
    "one dimension": (npz(**{"0_npy": npy(W[0])}), "shape (3,) does not fit"),
    "pickle": (npz(**{"0_npy": npy(np.array([[None]]))}), "expected <f4 (float32)"),
    "too large": (npz(**{"0_npy": npy(np.zeros((9, 2), np.float32))}), "(9, 2) does not fit 8 rows"),
    "bomb": (npz(**{"0_npy": huge_header()}), "(1048576, 1048576) does not fit"),
    "longer than its shape": (npz(**{"0_npy": npy(W) + bytes(10**7)}), "found more"),
    "nan": (npz(**{"0_npy": npy(np.full((2, 2), np.nan, np.float32))}), "holds NaN"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_refused_npz(tmp_path: Path, name: str) -> None:
    content, message = ARCHIVES[name]
    builder = good(npz=True).make()
    builder.files["weights/core_0_weights.npz"] = content
    refused(builder.write(tmp_path), message)


def core(*rows: tuple[int, ...]) -> Any:
    return stream(SETBW, *(address(r, 0) for r in range(1, 8)), *rows)


RULES = {
    "range": (core(op("sldi", rd=0), op("wait", event_register=40)), "event_register=40 is outside 0..31"),
    "length": (core(op("vrelu", rd=1, rs1=2, len=0)), "len=0 is outside"),
    "pair": (core(op("ld", rd=1, rs1=3, size=4)), "a global address needs an even register"),
    "pair st": (core(op("st", rd=3, rs1=2, size=4)), "a global address needs an even register"),
    "unwritten": (core(op("vvadd", rd=1, rs1=2, rs2=9, len=2)), "reads register 9, which nothing has written"),
    "unwritten target": (core(op("vrelu", rd=11, rs1=2, len=2)), "reads register 11"),
    "unwritten low word": (stream(address(1, 0), address(8, 0), op("ld", rd=1, rs1=8, size=2)), "reads register 9"),
    "written by itself": (stream(op("saddi", rd=12, rs1=12, imm=1)), "reads register 12"),
    "no setbw": (stream(address(1, 0), op("vrelu", rd=1, rs1=1, len=2)), "no setbw before it"),
    "late setbw": (stream(address(1, 0), op("vrelu", rd=1, rs1=1, len=2), SETBW), "no setbw before it"),
    "width": (core(op("setbw", ibiw=8, obiw=16)), "elements of this program have 8 bits"),
    "sld": (core(op("sld", rd=1, rs1=2)), "no smuli uses its result"),
    "shift": (core(op("vvsra", rd=1, rs1=2, rs2=3, len=2)), "shifts have no meaning"),
    "fill": (core(op("lldi", rd=1, imm=1, len=2)), "can fill with 0 only"),
    "group": (core(op("mvmul", rd=1, rs1=2, mbiw=8, group=1)), "core 0 has 1 array groups"),
    "self": (core(op("recv", rd=1, core=0, size=2)), "a core cannot exchange with itself"),
    "partner": (core(op("send", rd=1, rs1=1, core=2, size=2)), "the program has 2 cores"),
    "sync": (core(op("sync", core=2)), "the program has 2 cores"),
    "offset": (core(op("recv", rd=1, core=1, offset_value=2, size=2)), "set the bit in offset_select, 1"),
    "vmv": (core(op("vmv", rd=1, rs1=2, rs2=3, offset_select=7, offset_value=2, len=2)), "vmv takes no offset"),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_streams(tmp_path: Path, name: str) -> None:
    records, message = RULES[name]
    builder = good(cores=[records, stream()])
    with pytest.raises(ProgramError) as caught:
        load_output(builder.write(tmp_path))
    assert message in str(caught.value)
    assert caught.value.core == 0
    assert str(caught.value).startswith(f"core 0, instruction {caught.value.pc} (")


def test_weights_of_fewer_bits_leave_room_for_more_columns(tmp_path: Path) -> None:
    wide = np.ones((2, 16), np.float32)
    rows = [SETBW, address(1, 0), op("mvmul", rd=1, rs1=1, mbiw=4, group=0)]
    load_output(Builder([stream(*rows)], {0: [wide]}).write(tmp_path))


def probe(**changes: Any) -> dict[str, Any]:
    tile: dict[str, Any] = {"channels": [0, 4], "rows": [0, 1], "core": 0, "pc": 4, "address": 252}
    tile |= {k: v for k, v in changes.items() if k in tile}
    rest = {k: v for k, v in changes.items() if k not in tile}
    return {"tensor": "t", "node": "n", "image_shape": [4], "channel_axis": 0, "tiles": [tile]} | rest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pc": 5}, "no instruction 5 of core 0"),
        ({"core": 2}, "no instruction 4 of core 2"),
        ({"address": 253}, "4 bytes at 253 leave the local memory of core 0"),
        ({"channels": [0, 5]}, "tile c0:5"),
        ({"channels": [0, 3]}, "0 tiles hold row 0 column 0 of channel 3"),
        ({"channel_axis": 2}, "channel_axis 2"),
        ({"image_shape": [2**31 - 1, 2**20]}, "more than the limit"),
    ],
)
def test_rules_of_layers(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    load_output(good(probes=[probe()]).write(tmp_path / "good"))
    refused(good(probes=[probe(**changes)]).write(tmp_path / "bad"), message)


def test_not_a_directory(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no such file or directory")
    (tmp_path / "text").write_text("content")
    refused(tmp_path / "text", "not a directory")
    refused(tmp_path, "manifest.json: missing")


def change_manifest(folder: Path, change: Callable[[Any], Any]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "./config.json", "a//b"])
def test_names_that_leave_the_directory(tmp_path: Path, name: str) -> None:
    folder = good().write(tmp_path / "out")
    entry = {"size_bytes": 0, "sha256": "0" * 64}
    change_manifest(folder, lambda m: m["files"].update({name: entry}))
    refused(folder, "leaves the directory")


def test_changed_files(tmp_path: Path) -> None:
    folder = good().write(tmp_path)
    original = (folder / "core_0.json").read_bytes()
    (folder / "core_0.json").write_bytes(original + b" ")
    refused(folder, f"{len(original) + 1} bytes, but manifest.json says {len(original)}")
    (folder / "core_0.json").write_bytes(original.replace(b'"rd":1', b'"rd":7'))
    refused(folder, "changed since it was compiled")
    with pytest.raises(ProgramError, match="reads register 1"):
        load_output(folder, check_hashes=False)
    (folder / "core_0.json").unlink()
    refused(folder, "core_0.json: missing")


def test_a_stream_that_is_not_listed(tmp_path: Path) -> None:
    folder = good().write(tmp_path)
    (folder / "notes.txt").write_text("ignored")
    load_output(folder)
    (folder / "core_1.pim").write_bytes(b"")
    refused(folder, "core_1.pim: a stream that manifest.json does not list")


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder, other = good().write(tmp_path / "out"), tmp_path / "other"
    (folder / "core_0.json").rename(other)
    (folder / "core_0.json").symlink_to(other)
    refused(folder, "not a regular file")
    (folder / "core_0.json").unlink()
    other.rename(folder / "core_0.json")
    load_output(folder)
    (folder / "weights").rename(other)
    (folder / "weights").symlink_to(other)
    refused(folder, "not a regular file of this directory")


def test_a_folder_reached_through_a_link_is_fine(tmp_path: Path) -> None:
    good().write(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    load_output(tmp_path / "link")


def test_the_limit_of_memory(tmp_path: Path) -> None:
    folder = good().write(tmp_path)
    load_output(folder, memory_limit_bytes=4 * 256 * 4)
    with pytest.raises(UserError, match="more than the limit"):
        load_output(folder, memory_limit_bytes=4 * 256 * 4 - 1)


@given(st.data())
def test_no_damage_breaks_the_loader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A byte changed anywhere, the manifest made to agree: loaded or refused, never another exception."""
    folder = tmp_path_factory.mktemp("out")
    builder = good(pim=data.draw(st.booleans()), npz=data.draw(st.booleans()), probes=[probe()]).make()
    name = data.draw(st.sampled_from(sorted(builder.files)))
    content = bytearray(builder.files[name])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.sampled_from(list(b'0129-.e"[]{},: x\0\xff'))
        )
    builder.files[name] = bytes(content)
    with suppress(UserError):
        load_output(builder.write(folder))


def test_the_builder_lists_true_hashes(tmp_path: Path) -> None:
    folder = good().write(tmp_path)
    seal(folder, {"config.json": b""})
    listed = json.loads((folder / "manifest.json").read_text())["files"]["config.json"]["sha256"]
    assert listed == hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
