"""The mappings side by side: what each takes of the chip, and what it gives.

python examples/04_compare_mappings.py
"""

import tempfile
from pathlib import Path

import models
import raptor
from raptor.mapping.strategies import STRATEGIES
from validator.simulate.builtin import simulate

MODELS = {"lenet5": {}, "squeezenet": {"image_size": 64}, "mlp": {}}
COLUMNS = (
    f"{'model':12} {'mapping':8} {'crossbars':>9} {'cores':>5} {'instructions':>12} {'latency':>12} {'images/s':>9}"
)

print(COLUMNS)
with tempfile.TemporaryDirectory() as scratch:
    for name, options in MODELS.items():
        model = models.build(name, **options)
        for mapping in STRATEGIES:
            program = raptor.compile(model, cores=64, mapping=mapping)
            assert program.validate().passed
            out = program.save(Path(scratch) / f"{name}-{mapping}", stream_format="pim", weight_format="npz")
            one = simulate(out, out / "arch.json")
            many = simulate(out, out / "arch.json", mode="throughput")
            report = program.report
            figures = f"{report.xbars_used:9} {report.cores_used:5} {report.instruction_count:12,}"
            times = f"{(one.latency_ns or 0) / 1e3:9,.0f} us {many.samples_per_s:9,.0f}"
            print(f"{name:12} {mapping:8} {figures} {times}")
