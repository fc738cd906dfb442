"""Deadlock is decided exactly: compared with a plain round-robin run of sends, receives and tokens."""

from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import raptor
from models import MODELS
from raptor.target.isa import BY_OPCODE
from tests.validator.builder import op, stream
from validator.checks import check, check_subject
from validator.checks.rule_subject import CheckSubject
from validator.checks.rules.messages import execute_communication

CORES = 4
Step = tuple[str, int, int]
"""Kind, then core (sync, send, recv) or count (wait), then event register."""

steps = st.lists(
    st.tuples(st.sampled_from(["send", "recv", "sync", "wait"]), st.integers(0, CORES - 1), st.integers(0, 1)),
    max_size=8,
)


def encoded(step: Step) -> tuple[int, ...]:
    name, other, event = step
    if name == "wait":
        return op("wait", event_register=event, wait_value=other)
    if name == "sync":
        return op("sync", core=other, event_register=event)
    operands = {"rs1": 0} if name == "send" else {}
    return op(name, rd=0, core=other, size=4, **operands)


def run(cores: list[list[Step]]) -> list[int]:
    """The step each core reaches, by trying all until nothing moves."""
    at, tokens = [0] * CORES, Counter[tuple[int, int]]()
    moved = True
    while moved:
        moved = False
        for core, program in enumerate(cores):
            if at[core] == len(program):
                continue
            name, other, event = program[at[core]]
            if name == "sync":
                tokens[other, event] += 1
            elif name == "wait":
                if tokens[core, event] < other:
                    continue
                tokens[core, event] -= other
            else:
                wanted = ("recv" if name == "send" else "send", core)
                if other == core or at[other] == len(cores[other]) or cores[other][at[other]][:2] != wanted:
                    continue
                at[other] += 1
            at[core] += 1
            moved = True
    return at


@settings(max_examples=300)
@given(st.lists(steps, min_size=CORES, max_size=CORES))
def test_cores_get_as_far_as_in_a_plain_run(programs: list[list[Step]]) -> None:
    subject = CheckSubject(
        streams=[stream(*map(encoded, p)) for p in programs],
        groups=[()] * CORES,
        instantiated=[True] * CORES,
        config={"array_group_map": {f"core{k}": [] for k in range(CORES)}},
    )
    found = execute_communication(subject)
    reached = run(programs)
    assert list(found.reached - found.starts[:-1]) == reached
    stuck = any(at < len(p) for at, p in zip(reached, programs, strict=True))
    explained = {"deadlock", "wait-starved", "message-count", "self-message"}
    assert stuck == bool(explained & {f.rule for f in check_subject(subject)})


@settings(max_examples=100)
@given(st.lists(st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 4, *[st.integers(0, 255)] * 2), max_size=30), st.data())
def test_any_records_can_be_checked(rows: list[tuple[int, ...]], data: st.DataObject) -> None:
    """Any numbers are accepted without an exception, and without access outside an array."""
    opcodes = [data.draw(st.sampled_from(sorted(BY_OPCODE))) for _ in rows]
    records = stream(*((o, rd, rs1, 0, a, b, c, d) for o, (a, b, c, d, rd, rs1) in zip(opcodes, rows, strict=True)))
    subject = CheckSubject(streams=[records, records[::-1].copy()], groups=[(1, 2), None], instantiated=[True, False])
    for finding in check_subject(subject):
        assert finding.message
        assert finding.count >= 1


def test_nothing_is_found_in_our_own_output(tmp_path: Path) -> None:
    for name, options in (("lenet5", {"cores": 9}), ("mlp", {})):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(MODELS[name].build(seed=0).SerializeToString())
        program = raptor.compile(path, **options)
        program.save(tmp_path / name)
        assert check(tmp_path / name) == ()
        assert program.check() == ()


def test_numbers_of_instructions_do_not_matter() -> None:
    """A stream of many equal faults gives one finding."""
    rows = np.repeat(stream(op("lldi", rd=1, imm=0, len=0)), 100_000)
    subject = CheckSubject(streams=[rows], groups=[()], instantiated=[True])
    assert len(check_subject(subject)) < 6


def found_in(programs: list[list[Step]], rule: str) -> list[str]:
    """The messages of one rule."""
    subject = CheckSubject(
        streams=[stream(*map(encoded, p)) for p in programs],
        groups=[()] * len(programs),
        instantiated=[True] * len(programs),
    )
    return [f.message.partition(":")[0] for f in check_subject(subject) if f.rule == rule]


def test_a_core_that_waits_for_itself() -> None:
    """It would give the token later."""
    program: list[list[Step]] = [[("wait", 1, 0), ("sync", 0, 0)]]
    assert found_in(program, "wait-starved") == ["event_register 0"]
    assert found_in(program, "deadlock") == []


def test_a_circle_beside_a_core_that_never_comes() -> None:
    """Core 1 could be released by core 0 too, which starves; it is with core 2 that it waits in a circle."""
    program: list[list[Step]] = [
        [("wait", 1, 1), ("sync", 1, 0)],
        [("wait", 1, 0), ("send", 2, 0)],
        [("recv", 1, 0), ("sync", 1, 0)],
    ]
    assert found_in(program, "wait-starved") == ["event_register 1"]
    assert found_in(program, "deadlock") == ["core 1 at 0 (wait), core 2 at 0 (recv) wait for each other"]


def test_every_circle_is_found_once_from_where_it_is_reached() -> None:
    """Cores 1 and 2 wait for each other, as do 3 and 4; core 0 waits for core 2."""
    program: list[list[Step]] = [
        [("recv", 2, 0)],
        [("recv", 2, 0), ("send", 2, 0)],
        [("recv", 1, 0), ("send", 1, 0), ("send", 0, 0)],
        [("send", 4, 0), ("recv", 4, 0)],
        [("send", 3, 0), ("recv", 3, 0)],
    ]
    assert found_in(program, "deadlock") == [
        "core 2 at 0 (recv), core 1 at 0 (recv) wait for each other",
        "core 3 at 0 (send), core 4 at 0 (send) wait for each other",
    ]
