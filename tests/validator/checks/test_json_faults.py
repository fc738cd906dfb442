"""Oddities in the text of a stream, and in that of a file of weights."""

from pathlib import Path

import pytest

from raptor.target import encoding
from raptor.target.isa import INSTRUCTIONS
from tests.validator.builder import op, stream
from validator.checks.json_faults import (
    FRACTION,
    OFFSET_VALUE,
    UNKNOWN_KEY,
    WRAPPED,
    find_text_faults,
    missing_key_names,
)
from validator.checks.load_subject import read_matrix_shapes


def test_nothing_is_odd_in_what_we_write() -> None:
    assert find_text_faults(encoding.encode_json(stream(*(op(spec.name) for spec in INSTRUCTIONS)))) is None
    assert find_text_faults(b"[]") is None


@pytest.mark.parametrize(
    ("instruction", "missing", "odd", "unknown"),
    [
        ('{"op":"sldi","rd":1,"imm":5,"note":"x"}', [], UNKNOWN_KEY, "note"),
        ('{"op":"sldi","rd":1,"imm":5,"note":{"deep":{"deeper":1}}}', [], UNKNOWN_KEY, "note"),
        ('{"op":"sldi","rd":1,"imm":5,"rs2":[{"inner":1}]}', [], UNKNOWN_KEY, "inner"),
        ('{"op":"sldi","rd":1,"imm":5.0}', [], FRACTION, ""),
        ('{"op":"sldi","rd":1,"imm":4294967301}', [], WRAPPED, ""),
        ('{"op":"sldi","rd":1,"imm":4294967301.5}', [], FRACTION | WRAPPED, ""),
        ('{"op":"sldi","rd":1,"imm":3e9}', [], FRACTION | WRAPPED, ""),
        ('{"op":"sldi","rd":1,"imm":99999999999999999999}', [], WRAPPED, ""),
        ('{"op":"sldi","imm":true}', ["rd"], 0, ""),
        ('{"op":"lmv","rd":1,"rs1":2,"size":3}', ["len"], 0, ""),
        ('{"op":"mvmul","rd":1,"rs1":2,"mbiw":8,"group":0,"offset":{"offset_value":4}}', [], OFFSET_VALUE, ""),
        ('{"op":"mvmul","rd":1,"rs1":2,"mbiw":8,"group":0,"offset":{"offset_value":0}}', [], 0, ""),
        ('{"op":"vvadd","rd":1,"rs1":2,"rs2":3,"offset":{"len":5}}', [], 0, ""),
        ('{"op":"\\u006eop"}', [], 0, ""),
    ],
)
def test_what_is_odd(instruction: str, missing: list[str], odd: int, unknown: str) -> None:
    text = f'[{{"op":"nop"}},{instruction},{{"op":"nop","later":1}}]'.encode()
    faults = find_text_faults(text)
    assert faults is not None
    assert [missing_key_names(int(mask)) for mask in faults.missing] == [[], missing, []]
    assert (faults.odd.tolist(), faults.unknown) == ([0, odd, UNKNOWN_KEY], unknown or "later")


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "[[]]", "[", "[" * 100_000, '[{"op":"nop"},{"op":"x"', '[{"a":1e999}]']
)
def test_text_that_is_no_stream(text: str) -> None:
    assert find_text_faults(text.encode()) is None


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ('{"0": [[1, 2.5, 3], [4, 5, 6]], "1": [[-1e3]]}', [(2, 3), (1, 1)]),
        ('{"1": [[1]], "0": [[1, 2]]}', [(1, 2), (1, 1)]),
        ('{"0": [[]]}', [(1, 0)]),
        ('{"0": []}', None),
        ('{"1": [[1]]}', None),
        ('{"0": [["x"]]}', None),
        ('{"0": [[1], [2]', None),
        ('{"0": 1}', None),
        ("[]", None),
    ],
)
def test_sizes_of_matrices(text: str, shapes: list[tuple[int, int]] | None, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "config.json").write_text('{"core_cnt": 1}')
    (tmp_path / "weights" / "core_0_weights.json").write_text(text)
    assert read_matrix_shapes(tmp_path) == (None if shapes is None else [shapes])
