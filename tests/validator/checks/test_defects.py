"""Defects, one per trap of the simulator: each is found and named exactly, and nothing else is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validator.checks.seeds import SETBW, Seed, fill, i, op, product, recv, send, sldi, stream
from validator.checks import RULES, Finding, check

ROB = 4
Change = Callable[[Seed], None]
DEFECTS: list[tuple[str, str, Change]] = []


def defect(rule: str, also: str = "") -> Callable[[Change], Change]:
    """A change of the sound program; `also` are rules that it breaks by its nature."""

    def register(change: Change) -> Change:
        DEFECTS.append((rule, also, change))
        return change

    return register


def before_end(seed: Seed, *instructions: dict, core: int = 0) -> None:
    """Puts instructions before the last of a core."""
    seed.cores[core][-1:-1] = list(instructions)


def last(seed: Seed, core: int) -> dict:
    return seed.cores[core][-1]


@defect("width-unset")
def no_setbw(seed: Seed) -> None:
    del seed.cores[0][0]


@defect("width-unset")
def setbw_too_late(seed: Seed) -> None:
    seed.cores[1].insert(5, seed.cores[1].pop(0))


@defect("width-range", "input-resolution local-unwritten")
def wide_setbw(seed: Seed) -> None:
    seed.cores[0][0] = i("setbw", ibiw=8, obiw=64)


@defect("weight-width")
def no_weight_bits(seed: Seed) -> None:
    seed.cores[0][5]["mbiw"] = 0


@defect("stream-end")
def scalar_at_the_end(seed: Seed) -> None:
    seed.cores[0].append(sldi(1, 5))


@defect("stream-end")
def setbw_at_the_end(seed: Seed) -> None:
    seed.cores[1].append(SETBW)


@defect("scalar-only")
def only_scalars(seed: Seed) -> None:
    seed.cores.append([sldi(1, 5), sldi(2, 5)])
    seed.groups["core2"] = []
    seed.arch["chip_config"] |= {"core_cnt": 3}
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 3]


@defect("nop")
def a_nop(seed: Seed) -> None:
    before_end(seed, i("nop"))


@defect("extension-op")
def softmax(seed: Seed) -> None:
    before_end(seed, sldi(7, 100), i("vsoftmax", rd=7, rs1=7, len=4))


@defect("scalar-self-source")
def increment(seed: Seed) -> None:
    before_end(seed, sldi(9, 1), i("saddi", rd=9, rs1=9, imm=1))


@defect("scalar-self-source")
def second_source(seed: Seed) -> None:
    before_end(seed, sldi(9, 1), sldi(8, 1), i("sadd", rd=9, rs1=8, rs2=9))


@defect("sld")
def scalar_load(seed: Seed) -> None:
    before_end(seed, sldi(8, 0), sldi(9, 0), i("sld", rd=10, rs1=8))


@defect("register-unset")
def never_written(seed: Seed) -> None:
    before_end(seed, i("saddi", rd=9, rs1=20, imm=1))


@defect("register-unset")
def half_a_pair(seed: Seed) -> None:
    del seed.cores[1][6]  # sldi r5, the low word


@defect("register-range")
def register_40(seed: Seed) -> None:
    before_end(seed, sldi(40, 1))


@defect("register-pair")
def odd_pair(seed: Seed) -> None:
    last(seed, 1)["rd"] = 5


@defect("register-pair")
def last_pair(seed: Seed) -> None:
    before_end(seed, sldi(31, 0), core=1)
    last(seed, 1)["rd"] = 31


@defect("offset-misread")
def offset_selected(seed: Seed) -> None:
    last(seed, 0)["offset"] = {"offset_value": 4, "offset_select": 2}


@defect("offset-misread")
def offset_by_value(seed: Seed) -> None:
    last(seed, 0)["offset"] = {"offset_value": 2, "offset_select": 0}


@defect("offset-ignored")
def offset_of_a_product(seed: Seed) -> None:
    seed.cores[0][5]["offset"] = {"offset_value": 8, "offset_select": 1}


@defect("size-range")
def negative_length(seed: Seed) -> None:
    before_end(seed, sldi(7, 700), i("lldi", rd=7, imm=0, len=-5))


@defect("size-range")
def no_bytes(seed: Seed) -> None:
    before_end(seed, sldi(7, 700), i("lmv", rd=7, rs1=7, len=0, size=0))


@defect("throughput-single")
def one_instruction(seed: Seed) -> None:
    seed.arch["sim_config"] = {"sim_mode": 0}
    seed.cores[0] = [i("sync", core=1, event_register=0)]
    seed.cores[1] = [i("wait", event_register=0, wait_value=1), *fill(0)]
    seed.groups["core0"] = []


@defect("group-map")
def no_map(seed: Seed) -> None:
    seed.groups = None  # pyright: ignore


@defect("group-map")
def no_entry(seed: Seed) -> None:
    del seed.groups["core1"]


@defect("group-map")
def count_of_zero(seed: Seed) -> None:
    seed.groups["core1"] = [0]


@defect("group-range")
def group_5(seed: Seed) -> None:
    before_end(seed, *product(5), sldi(1, 100))


@defect("group-unused")
def idle_group(seed: Seed) -> None:
    seed.groups["core0"] = [1, 1]


@defect("group-capacity")
def too_many_crossbars(seed: Seed) -> None:
    seed.groups["core0"] = [5]


def weights(rows: int, cols: int) -> dict[str, str]:
    row = "[" + ",".join(["0.5"] * cols) + "]"
    return {"weights/core_0_weights.json": '{"0": [' + ",".join([row] * rows) + "]}"}


@defect("group-count")
def too_few_crossbars(seed: Seed) -> None:
    seed.extra = weights(128, 200)


@defect("group-count")
def spare_crossbars(seed: Seed) -> None:
    seed.groups["core0"] = [2]
    seed.extra = weights(128, 128)


@defect("group-count", "local-unwritten")
def too_many_rows(seed: Seed) -> None:
    seed.extra = weights(129, 8)


@defect("mvmul-outputs")
def narrow_cells(seed: Seed) -> None:
    seed.matrix()["xbar_size"] = [128, 2]
    seed.matrix()["cell_precision"] = 2


@defect("input-resolution")
def wide_dac(seed: Seed) -> None:
    seed.matrix()["dac_resolution"] = 16


@defect("input-rounding")
def uneven_dac(seed: Seed) -> None:
    seed.matrix()["dac_resolution"] = 3


@defect("local-negative")
def below_zero(seed: Seed) -> None:
    before_end(seed, *fill(-8, register=7))


@defect("local-range")
def beyond_memory(seed: Seed) -> None:
    seed.core()["local_memory_config"]["memory_size"] = 4096
    before_end(seed, *fill(4090, register=7))


@defect("local-range")
def beyond_default_memory(seed: Seed) -> None:
    seed.core().pop("local_memory_config")
    before_end(seed, *fill(2**20, register=7))


@defect("local-unwritten")
def another_buffer(seed: Seed) -> None:
    seed.cores[1][3] = sldi(2, 420)
    before_end(seed, *fill(460, 32, register=9), sldi(6, 400), core=1)


@defect("global-range")
def beyond_global_memory(seed: Seed) -> None:
    seed.cores[1][6] = sldi(5, 2**20)


@defect("global-range")
def words_exchanged(seed: Seed) -> None:
    seed.cores[1][5:7] = [sldi(4, 64), sldi(5, 0)]


MEMORY = (
    '{"version":1,"element_bits":8,"element_bytes":1,"size_bytes":128,"local_bytes":[2000,2000],'
    '"inputs":[{"name":"x","shape":[64],"image_shape":[64],"channel_axis":0,'
    '"tiles":[{"channels":[0,64],"rows":[0,1],"address":%d}]}],"constants":{"address":0,"elements":0},"outputs":[]}'
)


@defect("global-overwrite")
def input_overwritten(seed: Seed) -> None:
    seed.extra["memory.json"] = MEMORY % 32


@defect("local-buffers")
def beyond_the_map(seed: Seed) -> None:
    seed.extra["memory.json"] = MEMORY % 64
    before_end(seed, *fill(1990, register=7))


@defect("core-range")
def no_such_core(seed: Seed) -> None:
    before_end(seed, i("sync", core=7, event_register=0))


@defect("self-message")
def to_itself(seed: Seed) -> None:
    before_end(seed, *send(0))


@defect("event-range")
def event_32(seed: Seed) -> None:
    before_end(seed, i("sync", core=1, event_register=32))


@defect("message-count")
def never_received(seed: Seed) -> None:
    seed.cores[0] += send(1)


@defect("message-count")
def never_sent(seed: Seed) -> None:
    before_end(seed, *recv(0), core=1)


@defect("message-size")
def other_size(seed: Seed) -> None:
    last(seed, 0)["size"] = 60


@defect("deadlock")
def both_send_first(seed: Seed) -> None:
    seed.cores[0] += recv(1)
    seed.cores[1][1:1] = [*fill(100), *send(0)]


@defect("deadlock")
def both_receive_first(seed: Seed) -> None:
    before_end(seed, *recv(1))
    seed.cores[0][-1:-1] = [sldi(1, 100)]
    seed.cores[1] += send(0)


@defect("deadlock")
def through_a_token(seed: Seed) -> None:
    before_end(seed, i("wait", event_register=3, wait_value=1))
    seed.cores[1].append(i("sync", core=0, event_register=3))


@defect("wait-starved")
def too_few_tokens(seed: Seed) -> None:
    seed.cores[0].append(i("wait", event_register=3, wait_value=2))
    seed.cores[1].append(i("sync", core=0, event_register=3))


@defect("sync-unused")
def a_token_too_many(seed: Seed) -> None:
    seed.cores[1].append(i("sync", core=0, event_register=3))


@defect("event-shared")
def two_producers(seed: Seed) -> None:
    seed.arch["sim_config"] = {"sim_mode": 0}
    seed.arch["chip_config"] |= {"core_cnt": 3}
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 3]
    seed.groups["core2"] = []
    seed.cores[0].append(i("wait", event_register=3, wait_value=2))
    seed.cores[1].append(i("sync", core=0, event_register=3))
    seed.cores.append([*fill(0), i("sync", core=0, event_register=3)])


def reorder(seed: Seed, *instructions: dict) -> None:
    """Core 0 does only this, with several instructions in flight."""
    seed.core()["rob_size"] = ROB
    seed.core()["matrix_config"]["xbar_array_count"] = 4
    seed.groups["core0"] = []
    seed.cores = [[SETBW, *instructions], []]


@defect("hazard-unseen")
def loaded_and_used(seed: Seed) -> None:
    load = i("ld", rd=7, rs1=4, size=64)
    add = i("vvadd", rd=8, rs1=7, rs2=7, len=64)
    reorder(seed, sldi(4, 0), sldi(5, 0), sldi(7, 2000), sldi(8, 3000), load, add)


@defect("hazard-unseen")
def tail_of_a_fill(seed: Seed) -> None:
    add = i("vrelu", rd=8, rs1=9, len=16)
    reorder(seed, sldi(7, 2000), sldi(8, 3000), sldi(9, 2032), i("lldi", rd=7, imm=0, len=64), add)


@defect("hazard-order")
def written_twice(seed: Seed) -> None:
    add = i("vrelu", rd=8, rs1=7, len=64)
    setup = [sldi(7, 2000), sldi(8, 3000), i("lldi", rd=7, imm=0, len=64), add]
    reorder(seed, *setup, sldi(9, 3001), i("lldi", rd=9, imm=0, len=8))


@defect("hazard-adjacent")
def neighbours(seed: Seed) -> None:
    add = i("vrelu", rd=8, rs1=7, len=64)
    setup = [sldi(7, 2000), sldi(8, 2064), i("lldi", rd=7, imm=0, len=64), sldi(10, 5000), sldi(11, 6000)]
    copies = [i("lldi", rd=10, imm=0, len=64), add, sldi(9, 2128), i("lmv", rd=11, rs1=9, len=64, size=64)]
    fills = [sldi(9, 2128), i("lldi", rd=9, imm=0, len=64)]
    reorder(seed, *setup, *fills, *copies)


@defect("hazard-false")
def bottom_of_memory(seed: Seed) -> None:
    setup = [sldi(4, 0), sldi(5, 0), sldi(7, 0), sldi(8, 3000), i("lldi", rd=7, imm=0, len=64)]
    add = i("vrelu", rd=8, rs1=7, len=64)
    load = i("ld", rd=9, rs1=4, size=64)
    reorder(seed, *setup, add, sldi(9, 6000), load)


@defect("lmv-size", "hazard-unseen")
def copy_without_size(seed: Seed) -> None:
    seed.core()["rob_size"] = ROB
    before_end(seed, *fill(5000, register=9), sldi(10, 6000), i("lmv", rd=10, rs1=9, len=64))


@defect("send-registers")
def two_addresses(seed: Seed) -> None:
    before_end(seed, sldi(9, 101))
    last(seed, 0)["rs1"] = 9


@defect("core-file-name")
def stray_file(seed: Seed) -> None:
    seed.extra["core_0.json.gz"] = ""


@defect("core-file-name")
def core_beyond(seed: Seed) -> None:
    seed.extra["core_2.json"] = "[]"


@defect("core-file-missing")
def no_file(seed: Seed) -> None:
    seed.extra["config.json"] = '{"core_cnt": 3, "array_group_map": {"core0": [1], "core1": [], "core2": []}}'
    seed.arch["chip_config"] |= {"core_cnt": 3}
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 3]


@defect("core-file-alias", "core-file-padded")
def alias(seed: Seed) -> None:
    seed.extra["core_00.json"] = "[]"
    seed.extra["core_0.json"] = "[]"
    seed.cores[1] = []
    seed.groups["core0"] = []


@defect("json-unknown-key")
def misspelt(seed: Seed) -> None:
    last(seed, 0)["sizze"] = 64


@defect("json-fraction")
def a_fraction(seed: Seed) -> None:
    last(seed, 0)["size"] = 64.5


@defect("json-wrapped")
def wrapped(seed: Seed) -> None:
    before_end(seed, sldi(7, 2**32 + 5))


@defect("json-missing-key")
def no_length(seed: Seed) -> None:
    before_end(seed, {"op": "sldi", "rd": 7})


@defect("pim-rs2")
def binary_sum(seed: Seed) -> None:
    rows = [op("sldi", rd=1, imm=5), op("sadd", rd=2, rs1=1, rs2=0), op("lldi", rd=2, imm=0, len=4)]
    seed.pim[0] = stream(op("sldi", rd=0, imm=0), *rows)
    seed.cores[1] = []
    seed.groups["core0"] = []


@defect("arch-unknown-field")
def misspelt_field(seed: Seed) -> None:
    seed.core()["rob_sise"] = 8


@defect("arch-value")
def no_period(seed: Seed) -> None:
    seed.core()["period"] = 0


@defect("arch-value")
def no_rob(seed: Seed) -> None:
    seed.core()["rob_size"] = 0


@defect("arch-core-count")
def small_chip(seed: Seed) -> None:
    seed.arch["chip_config"]["core_cnt"] = 1


@defect("arch-dac-count")
def dacs(seed: Seed) -> None:
    seed.matrix()["dac_count"] = 200


@defect("arch-dac-passes")
def few_dacs(seed: Seed) -> None:
    seed.matrix()["dac_count"] = 64


@defect("arch-adc-count")
def adcs(seed: Seed) -> None:
    seed.matrix()["adc_count"] = 200


@defect("arch-rounding")
def uneven_adcs(seed: Seed) -> None:
    seed.matrix()["adc_count"] = 100


@defect("arch-dac-energy")
def nearly_free_dacs(seed: Seed) -> None:
    seed.matrix().update({"dac_dynamic_power": 0.0001, "dac_latency_cycle": 1, "xbar_latency": 1000})


@defect("arch-adc-energy")
def dear_adcs(seed: Seed) -> None:
    seed.matrix().update({"adc_dynamic_power": 1e4, "adc_latency_cycle": 10, "adc_resolution": 8})


@defect("arch-area")
def areas_of_another_chip(seed: Seed) -> None:
    part = {"name": "all", "level": "chip", "um2": 1e6, "kind": "ASSUMED", "source": "none"}
    seed.arch["area"] = {"node_nm": 32, "adc_bits": 3, "parts": [part]}


@defect("arch-memory-switch")
def two_switches(seed: Seed) -> None:
    seed.core()["global_memory_switch_id"] = -11


@defect("arch-layout")
def small_mesh(seed: Seed) -> None:
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 1]


@defect("arch-timeout")
def default_timeout(seed: Seed) -> None:
    del seed.arch["sim_config"]["latency_timeout_ms"]


@defect("arch-timeout")
def short_timeout(seed: Seed) -> None:
    seed.arch["sim_config"]["latency_timeout_ms"] = 1e-6


@defect("arch-verbose")
def verbose(seed: Seed) -> None:
    seed.arch["sim_config"]["report_verbose_level"] = 2


@defect("network-file")
def no_table(seed: Seed) -> None:
    seed.arch["chip_config"]["network_config"]["net_config_file_path"] = "elsewhere.json"


@defect("network-pair")
def missing_pair(seed: Seed) -> None:
    seed.network = {
        "latency": {"0": {"1": 4}, "1": {"-10": 4, "0": 4}},
        "energy": {"0": {"1": 4}, "1": {"0": 4}},
    }


def of_chip(seed: Seed, **defects: Any) -> None:
    """Puts a chip file beside the program: crossbars of 128x128, four in a core."""
    size = {"cores": 2, "crossbars": 4, "rows": 128, "columns": 128, "arrays": 2}
    chip = {"version": 1, "name": "die", "source": "a tester", "size": size} | defects
    seed.extra = {**weights(128, 8), "chip.json": json.dumps(chip)}


@defect("dead-core")
def a_dead_core_is_used(seed: Seed) -> None:
    of_chip(seed, dead_cores=[1])


def mesh(cores: int, columns: int) -> dict[str, int]:
    return {"cores": cores, "crossbars": 4, "rows": 128, "columns": 128, "arrays": 2, "mesh_columns": columns}


@defect("dead-link")
def a_dead_link_is_used(seed: Seed) -> None:
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 2]
    of_chip(seed, size=mesh(2, 2), dead_links=[[0, 1]])


@defect("chip-size", "dead-link")
def dead_links_of_another_mesh(seed: Seed) -> None:
    seed.arch["chip_config"]["network_config"]["layout"] = [1, 2]
    of_chip(seed, size=mesh(2, 1), dead_links=[[0, 1]])


@defect("dead-crossbar")
def no_crossbar_works(seed: Seed) -> None:
    of_chip(seed, dead_crossbars=[[0, 0], [0, 1], [0, 2], [0, 3]])


@defect("dead-line")
def a_dead_column_is_used(seed: Seed) -> None:
    of_chip(seed, dead_crossbars=[[0, 0], [0, 2], [0, 3]], arrays=[{"core": 0, "crossbar": 1, "columns": [3]}])


@defect("dead-line")
def a_dead_row_is_used(seed: Seed) -> None:
    of_chip(seed, arrays=[{"core": 0, "crossbar": k, "array": 1, "rows": [127]} for k in range(4)])


def repaired_for(crossbars: list[int], digest: str = "") -> str:
    place = {"core": 0, "group": 0, "crossbars": crossbars}
    table = {"version": 1, "chip": "die", "chip_sha256": digest or "0" * 64, "encoding": "offset", "levels": "full"}
    return json.dumps({**table, "cell_bits": 8, "groups": [place], "layers": []})


@defect("chip-size")
def another_chip(seed: Seed) -> None:
    of_chip(seed)
    seed.extra["repair.json"] = repaired_for([0])


@defect("chip-size")
def a_chip_with_fewer_crossbars(seed: Seed) -> None:
    of_chip(seed, size={"cores": 2, "crossbars": 3, "rows": 128, "columns": 128})


@defect("dead-crossbar", "chip-size")
def a_spare_counted_twice(seed: Seed) -> None:
    of_chip(seed)
    seed.extra["repair.json"] = repaired_for([3, 3])


@defect("dead-crossbar", "chip-size")
def a_repair_in_a_dead_crossbar(seed: Seed) -> None:
    of_chip(seed, dead_crossbars=[[0, 2]])
    seed.extra["repair.json"] = repaired_for([2])


def named(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize(("rule", "also", "change"), DEFECTS, ids=[c.__name__ for _, _, c in DEFECTS])
def test_a_defect_is_found_and_named(rule: str, also: str, change: Change, tmp_path: Path) -> None:
    seed = Seed()
    change(seed)
    found = named(check(seed.write(tmp_path)))
    assert rule in found
    assert found <= {rule, *also.split()}


def test_a_memory_size_that_is_named_is_a_limit(tmp_path: Path) -> None:
    seed = Seed()
    beyond_default_memory(seed)
    (finding,) = check(seed.write(tmp_path))
    assert finding.severity == "warning"
    seed = Seed()
    beyond_memory(seed)
    (finding,) = check(seed.write(tmp_path))
    assert finding.severity == "error"


def test_a_sound_program_has_no_findings(tmp_path: Path) -> None:
    assert check(Seed().write(tmp_path)) == ()


def test_defects_of_what_is_not_used(tmp_path: Path) -> None:
    seed = Seed()
    columns = [{"core": 0, "crossbar": 3, "columns": [90]}]
    of_chip(seed, dead_crossbars=[[0, 0], [0, 1], [1, 0]], arrays=[{"core": 0, "crossbar": 2, "rows": [0]}, *columns])
    assert check(seed.write(tmp_path)) == ()


def test_every_rule_has_a_defect() -> None:
    """`core-ignored` is about single files: test_program_forms."""
    assert set(RULES) - {name for rule, also, _ in DEFECTS for name in (rule, *also.split())} == {"core-ignored"}
