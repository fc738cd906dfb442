"""Describe a chip, have it checked, and see what one of its numbers does.

python examples/02_your_own_chip.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import models
import raptor
from raptor.target.arch import load
from validator.checks import check_chip
from validator.checks.arch_file import read_chip
from validator.simulate.builtin import simulate

CHIP = {
    "chip_config": {
        "core_cnt": 16,
        "core_config": {
            "matrix_config": {
                "xbar_array_count": 32,
                "xbar_size": [64, 64],
                "cell_precision": 4,
                "dac_count": 64,
                "adc_count": 1,
                "adc_latency_cycle": 2,
                "adc_dynamic_power": 2.0,
            },
            "local_memory_config": {"memory_size": 65536},
        },
        "network_config": {"layout": [4, 4]},
    },
    "sim_config": {"sim_mode": 1, "latency_timeout_ms": 100},
}
"""A chip. Fields that are left out have the simulator's default (docs/reference/architecture.md)."""


def with_adcs(count: int) -> dict[str, Any]:
    chip = json.loads(json.dumps(CHIP))
    chip["chip_config"]["core_config"]["matrix_config"]["adc_count"] = count
    return chip


def main(folder: Path) -> None:
    arch = folder / "arch.json"
    model = models.build("lenet5")

    # A misspelt field, which the simulator ignores, is refused.
    arch.write_text(json.dumps(CHIP).replace("adc_count", "adcs"))
    try:
        load(arch)
    except raptor.UserError as error:
        print("refused:", str(error).replace(str(folder), "."))

    arch.write_text(json.dumps(CHIP))
    findings = check_chip(read_chip(arch))
    print("checked:", [f"{f.severity}: {f.message}" for f in findings] or "nothing to say")

    print(f"\n{'ADCs a crossbar':>16} {'latency':>12} {'energy':>12}")
    for adcs in (1, 4, 16, 64):
        arch.write_text(json.dumps(with_adcs(adcs)))
        program = raptor.compile(model, arch=arch)
        out = program.save(folder / "out", force=True)
        found = simulate(out, out / "arch.json")
        print(f"{adcs:16} {(found.latency_ns or 0) / 1e3:9.1f} us {(found.energy_pj or 0) / 1e6:9.3f} uJ")


with tempfile.TemporaryDirectory() as scratch:
    main(Path(scratch))
