"""Streams to bytes and back."""

import json
import struct
from contextlib import suppress
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor.common.errors import InternalError, UserError
from raptor.common.jit.decorators import kernel
from raptor.target import encoding
from raptor.target.isa import (
    BY_NAME,
    INSTRUCTIONS,
    RECORD,
    Instruction,
    Records,
)
from tests.validator.builder import op, stream

Json = list[dict[str, Any]]


@st.composite
def instructions(draw: st.DrawFn, *, in_pim: bool = False) -> tuple[int, ...]:
    spec: Instruction = draw(st.sampled_from(INSTRUCTIONS))
    values = {o.name: draw(st.integers(o.low, o.high)) for o in spec.operands}
    if in_pim and spec.name in ("sadd", "ssub", "smul"):
        values["rs2"] = 0
    return op(spec.name, **values)


def records_of(rows: list[tuple[int, ...]]) -> Records:
    return np.array(rows, RECORD)


@given(st.lists(instructions(), max_size=40))
def test_json_round_trip(rows: list[tuple[int, ...]]) -> None:
    records = records_of(rows)
    text = encoding.encode_json(records)
    assert len(json.loads(text)) == len(rows)
    np.testing.assert_array_equal(encoding.decode_json(text), records)


@given(st.lists(instructions(), max_size=40), st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]))
def test_json_in_anyones_spelling(rows: list[tuple[int, ...]], random: Any, indent: Any) -> None:
    """Keys in any order, zeros left out, any white space: read by the fast reader and by the slow one."""
    records = records_of(rows)
    shuffled: Json = []
    for row in json.loads(encoding.encode_json(records)):
        row["offset"] = {k: v for k, v in row.get("offset", {}).items() if v}
        items = [(k, v) for k, v in row.items() if v not in (0, {})]
        random.shuffle(items)
        shuffled.append(dict(items))
    text = json.dumps(shuffled, indent=indent)
    np.testing.assert_array_equal(encoding.decode_json(text.encode()), records)
    escaped = text.replace('"op"', '"\\u006fp"').encode()
    np.testing.assert_array_equal(encoding.decode_json(escaped), records)


@given(st.lists(instructions(in_pim=True), max_size=40))
def test_pim_round_trip(rows: list[tuple[int, ...]]) -> None:
    records = records_of(rows)
    np.testing.assert_array_equal(encoding.decode_pim(encoding.encode_pim(records)), records)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_readers(content: bytes) -> None:
    for read in (encoding.decode_json, encoding.decode_pim):
        for prefix in (b"", b'[{"op":"sldi","rd":', b"PIMB\1\0\0\0\2\0\0\0"):
            with suppress(UserError):
                read(prefix + content)


@given(st.lists(instructions(), min_size=1, max_size=3), st.data())
def test_a_changed_byte_is_read_or_refused(rows: list[tuple[int, ...]], data: st.DataObject) -> None:
    """The fast reader must never take what the slow one refuses."""
    text = bytearray(encoding.encode_json(records_of(rows)))
    where = data.draw(st.integers(0, len(text) - 1))
    text[where] = data.draw(st.sampled_from(b'{}[]",:-0123456789.eE \nrdops\x00\xff'))
    try:
        fast = encoding.decode_json(bytes(text))
    except UserError:
        return
    slow = encoding.decode_json(json.dumps(json.loads(text)).replace('"op"', '"\\u006fp"').encode())
    np.testing.assert_array_equal(fast, slow)


def test_json_is_one_instruction_a_line() -> None:
    text = encoding.encode_json(
        stream(
            op("mvmul", rd=1, rs1=2, mbiw=8, group=3),
            op("lmv", rd=1, rs1=2, len=16),
            op("sldi", rd=31, imm=-(2**31)),
            op("nop"),
        )
    )
    assert text.decode() == (
        "[\n"
        '{"op":"mvmul","rd":1,"rs1":2,"mbiw":8,"relu":0,"group":3},\n'
        '{"op":"lmv","rd":1,"rs1":2,"offset":{"offset_select":0,"offset_value":0},"len":16,"size":16},\n'
        '{"op":"sldi","rd":31,"imm":-2147483648},\n'
        '{"op":"nop"}\n'
        "]\n"
    )


def test_an_idle_core_is_an_empty_array() -> None:
    none = np.zeros(0, RECORD)
    assert encoding.encode_json(none) == b"[]\n"
    assert len(encoding.decode_json(b" [ ] ")) == len(encoding.decode_pim(encoding.encode_pim(none))) == 0


def test_long_streams_come_in_chunks() -> None:
    records = np.tile(stream(op("sldi", rd=1, imm=-5), op("lmv", rd=1, rs1=2, len=7)), 50_000)
    chunks = list(encoding.encode_json_chunks(records))
    assert len(chunks) > 2
    assert encoding.encode_json(records) == b"".join(chunks)
    np.testing.assert_array_equal(encoding.decode_json(b"".join(chunks)), records)


@pytest.mark.parametrize(("keys", "length"), [({"len": 4, "size": 6}, 4), ({"size": 6}, 6), ({"len": 4}, 4)])
def test_lmv_takes_len_and_else_size(keys: dict[str, int], length: int) -> None:
    for order in (keys.items(), reversed(keys.items())):
        text = json.dumps([{"op": "lmv", "rd": 1, "rs1": 2, **dict(order)}]).encode()
        for spelling in (text, text.replace(b'"op"', b'"\\u006fp"')):
            assert encoding.decode_json(spelling)["d"] == length


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ('{"op": "hop"}', "unknown op 'hop'"),
        ('{"op": 3}', "unknown op 3"),
        ('{"op": ["sldi"]}', "unknown op"),
        ('{"rd": 3}', "op is missing"),
        ("{}", "op is missing"),
        ("7", "expected an object, found 7"),
        ("[]", "expected an object"),
        ('{"op": "sldi", "rd": 1, "rs1": 2}', "sldi has no field 'rs1'"),
        ('{"op": "sldi", "rd": 1, "ofset": {}}', "sldi has no field 'ofset'"),
        ('{"op": "sldi", "rd": 1, "offset": {"offset_value": 1}}', "sldi has no field 'offset.offset_value'"),
        ('{"op": "vvadd", "offset": {"rd": 1}}', "vvadd has no field 'offset.rd'"),
        ('{"op": "vvadd", "offset": {"offset_value": {}}}', "offset_value: expected an integer"),
        ('{"op": "vvadd", "offset.offset_value": 1}', "no field 'offset.offset_value'"),
        ('{"op": "vvadd", "offset_value": 1}', "vvadd has no field 'offset_value'"),
        ('{"op": "vvadd", "offset": 4}', "offset: expected an object, found 4"),
        ('{"op": "sldi", "imm": "5"}', "sldi, imm: expected an integer, found '5'"),
        ('{"op": "sldi", "imm": 5.5}', "sldi, imm: expected an integer, found 5.5"),
        ('{"op": "sldi", "imm": 1e3}', "sldi, imm: expected an integer"),
        ('{"op": "sldi", "imm": true}', "sldi, imm: expected an integer, found True"),
        ('{"op": "sldi", "imm": null}', "sldi, imm: expected an integer, found None"),
        ('{"op": "sldi", "imm": 2147483648}', "sldi, imm: 2147483648 does not fit 32 bits"),
        ('{"op": "sldi", "imm": -2147483649}', "does not fit 32 bits"),
        ('{"op": "sldi", "imm": 99999999999999999999}', "sldi, imm: "),
        ('{"op": "sldi", "rd": 32}', "sldi, rd: no register 32; expected 0 to 31"),
        ('{"op": "sldi", "rd": -1}', "sldi, rd: no register -1"),
        ('{"op": "vvadd", "rs2": 32}', "vvadd, rs2: no register 32"),
    ],
)
def test_json_that_is_refused(instruction: str, message: str) -> None:
    with pytest.raises(UserError, match=r"^instruction 1: ") as caught:
        encoding.decode_json(f'[{{"op":"nop"}},{instruction}]'.encode())
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[", "[1", '[{"op":"nop"}', '[{"op":"nop"},]', '[{"op":"sldi","rd":01}]'])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(UserError, match="not a JSON file"):
        encoding.decode_json(text.encode())


@pytest.mark.parametrize("text", ["{}", '{"op":"nop"}', "3", '"[]"', "null"])
def test_json_that_is_not_an_array(text: str) -> None:
    with pytest.raises(UserError, match="expected a JSON array"):
        encoding.decode_json(text.encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(UserError, match="not a JSON file: depth limit exceeded"):
        encoding.decode_json(b"[" * 100_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "shorter than its header"),
        (struct.pack("<4sII", b"PIMX", 1, 0), "not a .pim file of version 1"),
        (struct.pack("<4sII", b"PIMB", 2, 0), "version 2"),
        (struct.pack("<4sII", b"PIMB", 1, 1), "should have 32 bytes, has 12"),
        (struct.pack("<4sII", b"PIMB", 1, 2**32 - 1), "has 12"),
        (struct.pack("<4sII", b"PIMB", 1, 0) + b"x", "should have 12 bytes, has 13"),
        (struct.pack("<4sII", b"PIMB", 1, 1) + bytes([33]) + bytes(19), "instruction 0: unknown opcode 33"),
    ],
)
def test_pim_that_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        encoding.decode_pim(content)


def test_pim_reads_what_the_simulator_reads() -> None:
    """Unused slots and flags do not count, nor does rs2 of sadd."""
    records = np.frombuffer(bytes([3, 1, 2, 255]) + b"\7\0\0\0" * 4, RECORD)
    content = struct.pack("<4sII", b"PIMB", 1, 1) + records.tobytes()
    np.testing.assert_array_equal(encoding.decode_pim(content), stream(op("sadd", rd=1, rs1=2)))


@pytest.mark.parametrize("name", ["sadd", "ssub", "smul"])
def test_pim_refuses_what_it_would_lose(name: str) -> None:
    with pytest.raises(UserError, match=rf"instruction 1: \.pim cannot carry rs2 of {name}"):
        encoding.encode_pim(stream(op("nop"), op(name, rd=1, rs1=2, rs2=3)))


def test_writers_refuse_unknown_opcodes() -> None:
    bad = stream(op("nop"))
    bad["opcode"] = 40
    for write in (encoding.encode_json, encoding.encode_pim):
        with pytest.raises(InternalError, match="unknown opcode"):
            write(bad)


def test_the_fast_reader_takes_every_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_read_slowly", None)
    records = stream(*(op(spec.name) for spec in INSTRUCTIONS))
    np.testing.assert_array_equal(encoding.decode_json(encoding.encode_json(records)), records)


def spellings(number: str) -> tuple[bytes, bytes]:
    """An instruction with a number, for the fast reader and (with an escaped key) for the slow one."""
    text = f'[{{"op":"lldi","rd":1,"imm":{number},"unknown":{number},"len":7}}]'
    return text.encode(), text.replace('"op"', '"\\u006fp"').encode()


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("0.0", 0),
        ("-0.0", 0),
        ("5.0", 5),
        ("5.9", 5),
        ("-5.9", -5),
        ("0.020408162847161293", 0),
        ("2147483647.25", 2**31 - 1),
        ("4.999999999999", 4),
        ("123456.99999990909", 123456),
    ],
)
def test_the_fast_reader_cuts_fractions_off(number: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = spellings(number)
    expected = encoding.decode_json(slow, lenient=True)
    with pytest.raises(UserError, match="expected an integer"):
        encoding.decode_json(fast.replace(b'"unknown":' + number.encode() + b",", b""))
    monkeypatch.setattr(encoding, "_read_slowly", None)
    np.testing.assert_array_equal(encoding.decode_json(fast, lenient=True), expected)
    assert expected["a"].tolist() == [value]


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,11})(\.([0-9]{1,20}|9{1,20}[0-9]?))?([eE][+-]?[0-9]{1,2})?", fullmatch=True))
def test_fast_and_slow_reader_agree_on_numbers(number: str) -> None:
    fast, slow = spellings(number)
    try:
        expected = encoding.decode_json(slow, lenient=True)
    except UserError:
        with pytest.raises(UserError):
            encoding.decode_json(fast, lenient=True)
    else:
        np.testing.assert_array_equal(encoding.decode_json(fast, lenient=True), expected)


@pytest.mark.parametrize("value", ["1-2", "1.2.3", "+1", "01", ".5", "5.", "-", '"\t"', "tru"])
def test_an_unknown_key_has_json_as_its_value(value: str) -> None:
    with pytest.raises(UserError, match="not a JSON file"):
        encoding.decode_json(f'[{{"op":"nop","unknown":{value}}}]'.encode(), lenient=True)


def test_every_key_of_the_table_is_written() -> None:
    for spec in INSTRUCTIONS:
        (row,) = json.loads(encoding.encode_json(stream(op(spec.name))))
        flat = {k for k in row if k not in ("op", "offset")} | {f"offset.{k}" for k in row.get("offset", {})}
        assert flat == {key for operand in BY_NAME[spec.name].operands for key in operand.json}


def test_kernels_work_without_a_place_for_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba raises this where no directory can be written."""
    njit = numba.njit

    def without_cache(*, cache: bool, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(cache=cache, **options)

    def twice(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(numba, "njit", without_cache)
    assert kernel(twice)(4) == 8
