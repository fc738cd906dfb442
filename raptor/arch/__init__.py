"""Architecture files of pimsim-nn: their schema, presets, network tables, and the few numbers the compiler needs."""

from raptor.arch.chip import Arch
from raptor.arch.loading import load, presets
from raptor.arch.network import (
    check_network_size,
    mesh_cost,
    mesh_latency,
    mesh_layout,
    network_table,
    write_network,
)
from raptor.arch.schema import (
    ARCH_LIMIT_BYTES,
    GLOBAL_MEMORY_ID,
    NETWORK_FILE,
    ArchFile,
    ChipConfig,
    CoreConfig,
    MatrixConfig,
    MemoryConfig,
    NetworkConfig,
    SimConfig,
)
from raptor.arch.sources import SOURCES, Source

__all__ = [
    "ARCH_LIMIT_BYTES",
    "GLOBAL_MEMORY_ID",
    "NETWORK_FILE",
    "SOURCES",
    "Arch",
    "ArchFile",
    "ChipConfig",
    "CoreConfig",
    "MatrixConfig",
    "MemoryConfig",
    "NetworkConfig",
    "SimConfig",
    "Source",
    "check_network_size",
    "load",
    "mesh_cost",
    "mesh_latency",
    "mesh_layout",
    "network_table",
    "presets",
    "write_network",
]
