"""Reading anyone's programs."""

import json
from pathlib import Path
from typing import Any

import pytest

from raptor.common.errors import UserError
from raptor.target import encoding
from validator.program.json_members import split_members
from validator.program.pimsim_program import read_program


def write(folder: Path, config: dict[str, Any], **files: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_unknown_keys_and_odd_numbers_are_read_as_the_simulator_does():
    plain = b'[{"op":"sldi","rd":3,"imm":4294967301},{"op":"lmv","rd":1,"rs1":2,"len":7,"size":7,"core":9,"x":"y"}]'
    odd = b'[{"op":"sldi","rd":3.0,"imm":5.9,"offset":{"q":[1]}},{"op":"lmv","rd":1,"rs1":2,"len":7}]'
    a, b = (encoding.decode_json(text, lenient=True) for text in (plain, odd))
    assert a["a"].tolist() == b["a"].tolist() == [5, 0]
    assert a["flags"].tolist() == [0, 0]
    assert b["flags"].tolist() == [0, encoding.NO_SIZE_FLAG]
    for text, fault in ((plain, "imm: 4294967301 does not fit 32 bits"), (odd, "rd: expected an integer, found 3.0")):
        with pytest.raises(UserError, match=f"instruction 0: sldi, {fault}"):
            encoding.decode_json(text)


def test_lenient_and_strict_readers_agree_on_plain_streams():
    text = (
        b'[{"op":"send","rd":1,"rs1":1,"core":2,"offset":{"offset_select":1,"offset_value":4},"size":8},{"op":"nop"}]'
    )
    assert (encoding.decode_json(text) == encoding.decode_json(text, lenient=True)).all()


def test_a_directory_without_manifest(tmp_path: Path):
    map_ = {"core0": [1, 2], "core1": [4]}
    folder = write(tmp_path, {"core_cnt": 2, "array_group_map": map_, "more": 1}, core_0=[], core_1=[{"op": "nop"}])
    program = read_program(folder)
    assert program.groups == ((1, 2), (4,))
    assert [len(r) for r in program.records] == [0, 1]
    assert program.faults == ()
    (folder / "core_1.pim").write_bytes(encoding.encode_pim(program.records[0]) + b"trailing")
    assert [len(r) for r in read_program(folder).records] == [0, 0]


def test_what_the_simulator_refuses_is_noted(tmp_path: Path):
    folder = write(tmp_path, {"core_cnt": 2, "array_group_map": {"core0": [0]}}, core_0=[], core_x=[])
    faults = "\n".join(read_program(folder).faults)
    for part in (
        "core_x.json",
        "core_1.json or core_1.pim is missing",
        "array_group_map.core0",
        "array_group_map.core1",
    ):
        assert part in faults


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"config": {"core_cnt": 1}, "core0": []} x',
        '{"config": {"core_cnt": 1},, "core0": []}',
        '{"config": {"core_cnt": 1}, "core0": [], }',
        '{"config": {"core_cnt": 1} "core0": []}',
        '{"config": {"core_cnt": 1}, "core0": [] 3}',
        '{"config": {"core_cnt": 1}, "core0": }',
        '{"config": {"core_cnt": 1}, "core0": [',
        '{"config": {}}',
        '{"config": {"core_cnt": 1}}',
        '{"config": {"core_cnt": 0}}',
    ],
)
def test_what_cannot_be_read(tmp_path: Path, content: str):
    file = tmp_path / "program.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"program\.json"):
        read_program(file)
    with pytest.raises(UserError, match="no such file"):
        read_program(tmp_path / "missing")


def test_a_single_file_is_read_member_by_member(tmp_path: Path):
    file = tmp_path / "program.json"
    file.write_text(
        """ { "config": {"core_cnt": 2, "array_group_map": {"core0": [1], "core1": [2]}},
        "core1": [{"op": "nop"}], "notes": {"core0": "}],{"}, "core\\u0030": [{"op":"sldi","rd":1.0,"imm":2.5}],
        "core1": [] } """
    )
    program = read_program(file)
    assert [len(r) for r in program.records] == [1, 0]  # the later one of two members counts
    assert (program.records[0]["rd"].tolist(), program.records[0]["a"].tolist()) == ([1], [2])
    assert program.groups == ((1,), (2,))


def test_members():
    content = b'{"a": [1, {"b": "]"}], "c\\n": "}" , "d":null}'
    found = split_members(content)
    assert {k: bytes(text) for k, text in found.items()} == {"a": b'[1, {"b": "]"}]', "c\n": b'"}"', "d": b"null"}
    assert split_members(b"x" + content) == split_members(content + b"y") == split_members(b"[" * 100_000) == {}
    assert split_members(b"") == split_members(b"{}") == split_members(b"[1]") == split_members(b'{"a"') == {}
    many = json.dumps({str(k): k for k in range(20_000)}).encode()
    assert len(split_members(many)) == 20_000
