"""Builds the architecture of a chip from its components.

Each rule is the inverse of a formula of the simulator (docs/explanation/energy.md), so that the energy and the time of
a product are the sums of the parts. Values that the simulator would round are refused.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.target.arch import GLOBAL_MEMORY_ID, NETWORK_FILE
from raptor.target.arch.flit_cost import mesh_layout
from raptor.target.arch.flit_cost_table import FlitCostTable, make_cost_table
from raptor.target.arch.parse_file import parse_arch
from raptor.target.arch.pimsim_file import ChipDescription
from raptor.target.components.component_file import ChipPart, ComponentFile, MemoryPart, PeripheryPart
from raptor.target.components.part_models import fill_from_models, refuse_parts

Floats = npt.NDArray[np.float64]


def build_chip(parts: ComponentFile) -> ChipDescription:
    """Returns the architecture of the chip, with its network table and areas.

    Raises `UserError` for times that are no whole number of periods, converters that do not divide the crossbar, and an
    energy in a part that takes no time.
    """
    parts = fill_from_models(parts)
    _check_cites(parts)
    rows, cols = mesh_layout(parts.chip.cores)
    chip = {
        "core_cnt": parts.chip.cores,
        "core_config": _core(parts),
        "global_memory_config": _memory(parts.global_memory, parts.chip.clock_ns),
        "network_config": {
            "bus_width": parts.router.flit_bytes,
            "layout": [rows, cols],
            "net_config_file_path": NETWORK_FILE,
        },
        "global_memory_switch_id": GLOBAL_MEMORY_ID,
    }
    area = _area(parts)
    file = {"chip_config": chip, "sim_config": {"sim_mode": 1, "latency_timeout_ms": 2000}} | area
    description, problems = parse_arch(file)
    if description is None:
        refuse_parts(f"{problems[0].name}: {problems[0].message}")
    return ChipDescription(description.file, make_network_table(parts, cols))


def _periods(name: str, ns: float, period_ns: float) -> int:
    """Returns a time as a number of periods. Raises `UserError` unless it is a whole number."""
    count = round(ns / period_ns)
    if count < 1 or abs(count * period_ns - ns) > 1e-9 * ns:
        refuse_parts(
            f"{name}: {ns:g} ns is no whole number of periods of {period_ns:g} ns; change converters.period_ns"
        )
    return count


def _mw(name: str, pj: float, ns: float) -> float:
    """Returns the power that takes `pj` in `ns`."""
    if pj and not ns:
        refuse_parts(f"{name}: an energy of {pj:g} pJ, but it takes no period; give it periods")
    return pj / ns if pj else 0.0


def _core(parts: ComponentFile) -> dict[str, Any]:
    vector, chip = parts.vector, parts.chip
    return {
        "rob_size": chip.rob_size,
        "period": chip.clock_ns,
        "matrix_config": _matrix(parts),
        "vector_width": vector.lanes,
        "vector_latency_cycle": vector.step_ns,
        "vector_alu_dynamic_energy": vector.lanes * vector.lane_pj,
        "vector_alu_static_power": vector.static_mw,
        "controller_static_power": parts.controller.static_mw,
        "transfer_static_power": parts.router.static_mw / parts.router.shared_by,
        "local_memory_config": _memory(parts.local_memory, chip.clock_ns),
        "global_memory_switch_id": GLOBAL_MEMORY_ID,
    }


def _matrix(parts: ComponentFile) -> dict[str, Any]:
    crossbar, adc, dac = parts.crossbar, parts.adc, parts.dac
    dacs = crossbar.rows if dac.per_crossbar is None else dac.per_crossbar
    for name, count, size, what in (
        ("adc.per_crossbar", adc.per_crossbar, crossbar.cols, "columns"),
        ("dac.per_crossbar", dacs, crossbar.rows, "rows"),
    ):
        if size % count:
            refuse_parts(f"{name}: {count} do not divide the {size} {what}, and the simulator rounds the steps down")
    period = adc.conversion_ns if parts.converters.period_ns is None else parts.converters.period_ns
    cycles = _periods("adc", adc.conversion_ns, period)
    return {
        "xbar_array_count": crossbar.per_core,
        "xbar_size": [crossbar.rows, crossbar.cols],
        "cell_precision": crossbar.cell_bits,
        "period": period,
        "pipeline_mode": parts.converters.pipelined,
        "xbar_latency": crossbar.read_ns,
        "xbar_read_power": crossbar.read_pj / crossbar.read_ns,
        "dac_resolution": dac.bits,
        "dac_count": dacs,
        "dac_latency_cycle": dac.periods,
        "dac_dynamic_power": dac.pj / (period * dac.periods),
        "dac_static_power": dac.static_mw,
        "adc_resolution": adc.bits,
        "adc_count": adc.per_crossbar,
        "adc_latency_cycle": cycles,
        "adc_dynamic_power": (adc.pj or 0.0) / (period * cycles),
        "adc_static_power": adc.static_mw,
        "input_buffer_static_power": parts.input_buffer.static_mw,
        **_periphery("sample_hold", parts.sample_hold, period, 1, crossbar.cols),
        **_periphery("shift_adder", parts.shift_add, period, adc.per_crossbar, 1),
        **_periphery("output_buffer", parts.output_buffer, period, adc.per_crossbar, 1),
    }


def _periphery(name: str, part: PeripheryPart, period: float, columns: int, copies: int) -> dict[str, Any]:
    """Returns the fields of a part, which handles `columns` at a time, and of which `copies` take static power."""
    power = _mw(name, part.pj * columns, part.periods * period)
    cycles = {f"{name}_latency_cycle": part.periods, f"{name}_dynamic_power": power}
    return cycles | {f"{name}_static_power": part.static_mw / copies}


def _memory(memory: MemoryPart, clock_ns: float) -> dict[str, Any]:
    return {
        "data_width": memory.width,
        "period": clock_ns,
        "read_latency_cycle": _clocks(memory.read_ns, clock_ns),
        "write_latency_cycle": _clocks(memory.write_ns, clock_ns),
        "memory_size": memory.bytes,
        "static_power": memory.static_mw,
        "read_dynamic_energy": memory.read_pj,
        "write_dynamic_energy": memory.write_pj,
    }


def _clocks(ns: float | None, clock_ns: float) -> int:
    return math.ceil((ns or 0.0) / clock_ns - 1e-9)


def make_network_table(parts: ComponentFile, cols: int) -> FlitCostTable:
    """Computes the network table: a flit passes 1 + hops routers, and hops wires; global memory is at core 0."""
    router = parts.router
    cores = np.arange(parts.chip.cores)
    row, col = cores // cols, cores % cols
    hops = np.abs(row[:, None] - row) + np.abs(col[:, None] - col)
    memory_ns = 2 * router.ns if router.memory_ns is None else router.memory_ns
    energy = router.pj * (1.0 + hops) + router.wire_pj * hops
    latency = router.ns * (1.0 + hops), np.full(len(cores), memory_ns)
    return make_cost_table(latency, (energy, energy[0]), GLOBAL_MEMORY_ID)


# Areas


def _list_parts(parts: ComponentFile) -> Iterator[tuple[str, str, float, ChipPart]]:
    """Yields name, level and count of each part of the chip."""
    dacs = parts.dac.per_crossbar or parts.crossbar.rows
    yield "crossbar", "crossbar", 1, parts.crossbar
    yield "ADC", "crossbar", parts.adc.per_crossbar, parts.adc
    yield "DAC", "crossbar", dacs, parts.dac
    for name in ("sample_hold", "shift_add", "input_buffer", "output_buffer"):
        yield name.replace("_", " "), "crossbar", 1, getattr(parts, name)
    yield "vector unit", "core", 1, parts.vector
    yield "controller", "core", 1, parts.controller
    yield "local memory", "core", 1, parts.local_memory
    yield "router", "core", 1 / parts.router.shared_by, parts.router
    yield "global memory", "chip", 1, parts.global_memory
    if parts.link is not None:
        yield "off-chip link", "chip", 1, parts.link


def _area(parts: ComponentFile) -> dict[str, Any]:
    listed: list[Mapping[str, Any]] = []
    for name, level, count, part in _list_parts(parts):
        if part.um2 == 0.0 and part.cite is None:
            continue  # a part that the chip does not have
        listed.append(
            {
                "name": name,
                "level": level,
                "count": count,
                "um2": part.um2,
                "low_um2": part.low_um2,
                "high_um2": part.high_um2,
                "kind": part.kind,
                "source": part.cite or "given without a source",
            }
        )
    sizes = {
        "node_nm": parts.node_nm,
        "xbars_per_core": parts.crossbar.per_core,
        "xbar_size": [parts.crossbar.rows, parts.crossbar.cols],
        "adc_count": parts.adc.per_crossbar,
        "adc_bits": parts.adc.bits,
    }
    return {"area": sizes | {"parts": listed}}


def _check_cites(parts: ComponentFile) -> None:
    """Raises `UserError` for an area that claims evidence without a source, or lies outside its range."""
    for name, _, _, part in _list_parts(parts):
        if part.kind != "ASSUMED" and part.cite is None:
            refuse_parts(f"{name}: kind {part.kind} needs a source: give cite, or leave kind out")
        ends = [part.low_um2, part.um2, part.high_um2]
        known = [um2 for um2 in ends if um2 is not None]
        if known != sorted(known) or (known and part.um2 is None):
            refuse_parts(f"{name}: expected low_um2 <= um2 <= high_um2")
