"""Find the layer that takes the most time in the reference mapping, see what its cores do, and try what helps.

python examples/03_find_the_bottleneck.py
"""

import tempfile
from pathlib import Path

import models
import raptor
from validator.simulate.builtin import simulate
from validator.simulate.simulation_report import SimulationReport


def simulated(mapping: str, folder: Path) -> SimulationReport:
    program = raptor.compile(models.build("lenet5"), cores=20, mapping=mapping)
    out = program.save(folder / mapping)
    return simulate(out, out / "arch.json")


def explain(mapping: str, report: SimulationReport) -> str:
    """Prints where the time goes; returns the slowest layer."""
    latency = report.latency_ns or 0.0
    path = sorted(report.critical_path_ns.items(), key=lambda item: -item[1])
    print(f"{mapping}: {latency / 1e3:,.1f} us")
    for node, ns in path[:3]:
        print(f"  {node:8} {ns / 1e3:10,.1f} us  {ns / latency:6.1%} of the critical path")
    busy = sum(c.matrix_ns for c in report.cores) / (latency * len(report.cores))
    waiting = sum(c.wait_recv_ns + c.wait_send_ns for c in report.cores) / (latency * len(report.cores))
    print(f"  {len(report.cores)} cores: crossbars busy {busy:.1%} of the time, waiting for each other {waiting:.1%}\n")
    return path[0][0]


with tempfile.TemporaryDirectory() as scratch:
    before = simulated("raptor", Path(scratch))
    slowest = explain("raptor", before)
    print(f"{slowest} computes its pixels one after another, on one copy of its weights.")
    print("`rows`, the default, gives slow layers more cores and starts layers early:\n")
    after = simulated("rows", Path(scratch))
    explain("rows", after)
    print(f"{(before.latency_ns or 0) / (after.latency_ns or 1):.0f} times as fast")
