"""Reads architecture files of pimsim-nn, and makes the target that such a file and its network table describe."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from raptor.common.errors import UserError
from raptor.target.arch.schema import ARCH_LIMIT_BYTES, ArchFile, CoreConfig, MatrixConfig, MemoryConfig
from raptor.target.arch.table import Table
from raptor.target.arch.target import Converters, Core, Crossbar, Memory, Network, Target, Widths


def presets() -> tuple[str, ...]:
    """Returns the names of the architecture files that come with RAPTOR; they can be given instead of a path."""
    folder = resources.files("raptor.target") / "presets"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def read_arch(source: str | Path) -> dict[str, Any]:
    """Reads an architecture file, or a preset: a JSON object in UTF-8 of at most `ARCH_LIMIT_BYTES`.

    Does not check the content of the object. Raises `UserError`, which names the file.
    """
    try:
        raw = json.loads(_content(source).decode())
    except OSError as e:
        raise UserError(
            f"architecture {source}: {e.strerror or e}; give a file or one of: {', '.join(presets())}"
        ) from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"architecture {source}: not a JSON file: {e}") from e
    if not isinstance(raw, dict):
        raise UserError(f"architecture {source}: expected an object with chip_config")
    return raw  # pyright: ignore[reportUnknownVariableType] callers check it by the schema


def _content(source: str | Path) -> bytes:
    if str(source) in presets():
        return (resources.files("raptor.target") / "presets" / f"{source}.json").read_bytes()
    with Path(source).open("rb") as stream:
        content = stream.read(ARCH_LIMIT_BYTES + 1)
    if len(content) > ARCH_LIMIT_BYTES:
        raise UserError(f"architecture {source}: more than the {ARCH_LIMIT_BYTES} bytes expected")
    return content


def target_of(file: ArchFile, table: Table | None, element_bits: int, notes: tuple[str, ...]) -> Target:
    """Makes a target with ideal cells. `table`: the file's own network table, None for the mesh.

    `element_bits` is the width of all elements. `notes`: see `Target`.
    """
    chip = file.chip_config
    rows, cols = chip.network_config.layout
    count = file.chips.count if file.chips else 1
    return Target(
        file=file,
        chips=count,
        cores_per_chip=chip.core_cnt // count,
        core=_core(chip.core_config),
        memory=_memory(chip.global_memory_config),
        network=Network(chip.network_config.bus_width, rows, cols, chip.global_memory_switch_id, table),
        widths=Widths(element_bits, element_bits, element_bits),
        notes=notes,
    )


def _core(core: CoreConfig) -> Core:
    return Core(
        period_ns=core.period,
        rob_size=core.rob_size,
        vector_width=core.vector_width,
        # The unit is ns, although the name of the field says cycles.
        vector_step_ns=core.vector_latency_cycle,
        xbar_count=core.matrix_config.xbar_array_count,
        xbar=_crossbar(core.matrix_config),
        memory=_memory(core.local_memory_config),
    )


def _crossbar(matrix: MatrixConfig) -> Crossbar:
    converters = Converters(
        period_ns=matrix.period,
        pipelined=matrix.pipeline_mode,
        dac_bits=matrix.dac_resolution,
        dacs=matrix.dac_count,
        dac_cycles=matrix.dac_latency_cycle,
        sample_hold_cycles=matrix.sample_hold_latency_cycle,
        adcs=matrix.adc_count,
        adc_cycles=matrix.adc_latency_cycle,
        shift_add_cycles=matrix.shift_adder_latency_cycle,
        output_buffer_cycles=matrix.output_buffer_latency_cycle,
    )
    rows, cols = matrix.xbar_size
    return Crossbar(rows, cols, matrix.cell_precision, matrix.xbar_latency, converters)


def _memory(memory: MemoryConfig) -> Memory:
    return Memory(
        beat_bytes=memory.data_width,
        period_ns=memory.period,
        read_cycles=memory.read_latency_cycle,
        write_cycles=memory.write_latency_cycle,
        size_bytes=memory.memory_size,
        size_given="memory_size" in memory.model_fields_set,
    )
