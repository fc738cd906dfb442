"""Architecture files of pimsim-nn: their schema, presets, network tables, and the few numbers the compiler needs."""

from raptor.target.arch.chip import Arch
from raptor.target.arch.loading import check_source, load, presets
from raptor.target.arch.network import (
    MESH_FLIT_NS,
    check_network_size,
    flit_ns,
    longest_flit_ns,
    memory_flit_ns,
    mesh_cost,
    mesh_latency,
    mesh_layout,
    network_table,
    typical_flit_ns,
    write_network,
)
from raptor.target.arch.schema import (
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
from raptor.target.arch.sources import SOURCES, Source
from raptor.target.arch.table import Table

__all__ = [
    "ARCH_LIMIT_BYTES",
    "GLOBAL_MEMORY_ID",
    "MESH_FLIT_NS",
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
    "Table",
    "check_network_size",
    "check_source",
    "flit_ns",
    "load",
    "longest_flit_ns",
    "memory_flit_ns",
    "mesh_cost",
    "mesh_latency",
    "mesh_layout",
    "network_table",
    "presets",
    "typical_flit_ns",
    "write_network",
]
