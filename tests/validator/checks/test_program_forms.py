"""Single files, .pim, other people's spellings, and what is shown."""

import gzip
import json
from pathlib import Path

import orjson
import pytest

import raptor
from models import MODELS
from raptor.common.errors import UserError
from raptor.target import encoding
from raptor.target.isa import OPCODE
from tests.paths import ROOT
from tests.pipeline import conv_model
from tests.validator.checks.seeds import Seed, i, send, sldi
from validator.checks import RULES, check
from validator.checks.__main__ import main
from validator.checks.findings_output import is_clean, summarise_findings, to_json, to_sarif
from validator.checks.rules_page import render_page

DOCS = ROOT / "docs" / "reference" / "checks.md"


def single(seed: Seed, folder: Path, *, packed: bool = False) -> Path:
    text = json.dumps(seed.single(), indent=1).encode()
    path = folder / "program.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_a_single_file_needs_no_architecture(packed: bool, tmp_path: Path) -> None:
    assert check(single(Seed(), tmp_path, packed=packed)) == ()


def test_a_single_file_with_a_preset(tmp_path: Path) -> None:
    found = check(single(Seed(), tmp_path), "bench")
    assert {f.rule for f in found} <= {"arch-timeout"}


def test_streams_beyond_the_count_are_ignored(tmp_path: Path) -> None:
    seed = Seed()
    path = single(seed, tmp_path)
    raw = json.loads(path.read_text())
    raw["core2"] = [sldi(1, 1)]
    path.write_text(json.dumps(raw))
    assert [f.rule for f in check(path)] == ["core-ignored"]


def test_a_core_left_out_cannot_be_a_partner(tmp_path: Path) -> None:
    seed = Seed()
    raw = seed.single()
    del raw["core1"]
    path = tmp_path / "program.json"
    path.write_text(json.dumps(raw))
    found = check(path)
    assert "core-range" in {f.rule for f in found}
    assert "has no stream" in next(f.message for f in found if f.rule == "core-range")


def test_oddities_of_text_are_found_in_a_single_file(tmp_path: Path) -> None:
    seed = Seed()
    seed.cores[1][-1]["rs1"] = 6.0
    seed.cores[1][-1]["comment"] = "x"
    found = check(single(seed, tmp_path))
    assert {f.rule: (f.core, f.pc) for f in found} == {"json-fraction": (1, 8), "json-unknown-key": (1, 8)}


def test_binary_streams(tmp_path: Path) -> None:
    seed = Seed()
    for core, instructions in enumerate(seed.cores):
        seed.pim[core] = encoding.decode_json(json.dumps(instructions).encode())
    assert check(seed.write(tmp_path)) == ()


def test_equal_findings_are_one(tmp_path: Path) -> None:
    seed = Seed()
    seed.cores[0][-1:-1] = [i("lldi", rd=1, imm=0, len=0)] * 1000
    seed.cores[1].insert(-1, i("lldi", rd=1, imm=0, len=0))
    (found,) = check(seed.write(tmp_path))
    assert (found.core, found.pc, found.count, found.cores) == (0, 7, 1001, 2)
    assert found.instruction == "lldi rd=1 imm=0 len=0"


def test_a_circle_names_its_cores(tmp_path: Path) -> None:
    seed = Seed()
    seed.cores[0].append(i("recv", rd=1, core=1, size=4))
    seed.cores[1][1:1] = send(0, 4, 100)
    found = next(f for f in check(seed.write(tmp_path)) if f.rule == "deadlock")
    assert "core 0 at 7 (send), core 1 at 2 (send) wait for each other" in found.message


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"config": {}}', '{"config": {"core_cnt": 1}, "core0": [{"op": "x"}]}']
)
def test_what_cannot_be_read_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"program\.json"):
        check(path)


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Seed().write(tmp_path)
    assert main([str(folder)]) == 0
    assert main([str(folder / "nothing")]) == 2
    del (seed := Seed()).cores[0][0]
    seed.write(tmp_path)
    sarif, report = tmp_path / "out.sarif", tmp_path / "out.json"
    assert main([str(folder), "--sarif", str(sarif), "--json", str(report)]) == 1
    text = capsys.readouterr().out
    assert "error width-unset core 0 at 4 (mvmul" in text
    assert "1 error" in text
    assert json.loads(report.read_text())["findings"][0]["rule"] == "width-unset"
    run = json.loads(sarif.read_text())["runs"][0]
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == ["width-unset"]
    (result,) = run["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 6}
    assert result["level"] == "error"


def test_notes_are_clean(tmp_path: Path) -> None:
    seed = Seed()
    seed.matrix()["adc_count"] = 100
    found = check(seed.write(tmp_path))
    assert [f.severity for f in found] == ["note"]
    assert is_clean(found)
    assert summarise_findings(found) == "1 note"
    assert orjson.loads(to_json(found))["clean"] is True
    assert orjson.loads(to_sarif(found))["version"] == "2.1.0"


def test_the_reference_is_up_to_date() -> None:
    assert DOCS.read_text() == render_page(), "run: make docs-generate"


def test_every_rule_says_what_to_do() -> None:
    for rule in RULES.values():
        assert len(rule.effect) > 15, rule.id
        assert len(rule.advice) > 10, rule.id
        assert not rule.effect.endswith("."), rule.id


def test_a_program_before_and_after_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS["lenet5"].build(seed=0).SerializeToString())
    program = raptor.compile(path, cores=9)
    assert program.artifacts is not None
    records = next(r for r in program.artifacts.machine.records.values() if (r["opcode"] == OPCODE["mvmul"]).any())
    records["opcode"][records["opcode"] == OPCODE["setbw"]] = OPCODE["nop"]
    before = {finding.rule for finding in program.check()}
    after = {finding.rule for finding in check(program.save(tmp_path / "out"))}
    assert {"width-unset", "nop"} <= before == after


def test_weights_that_meet_padding_only_are_a_note_in_programs_of_ours(tmp_path: Path) -> None:
    """The image has 1x1 pixels, so 8 of 9 kernel positions are padding.

    In other compilers' programs it is a warning.
    """
    program = raptor.compile(conv_model((1, 4, 1, 1), 4, pads=(1, 1, 1, 1)), mapping="raptor", cores=4)
    out = program.save(tmp_path / "out")
    for found in (program.check(), check(out)):
        (finding,) = found
        assert (finding.rule, finding.severity, finding.count) == ("group-unused", "note", 8)
        assert is_clean(found)
    (out / "manifest.json").unlink()
    (finding,) = check(out)
    assert (finding.rule, finding.severity) == ("group-unused", "warning")
    assert "drop the group" in finding.advice
