"""The target of a compilation, and pimsim-nn's files as its source: schema, presets, network tables."""

from raptor.target.arch.loading import check_source, load
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
from raptor.target.arch.pimsim import presets, read_arch, target_of
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
from raptor.target.arch.target import Converters, Core, Crossbar, Memory, Network, Target, Widths

__all__ = [
    "ARCH_LIMIT_BYTES",
    "GLOBAL_MEMORY_ID",
    "MESH_FLIT_NS",
    "NETWORK_FILE",
    "SOURCES",
    "ArchFile",
    "ChipConfig",
    "Converters",
    "Core",
    "CoreConfig",
    "Crossbar",
    "MatrixConfig",
    "Memory",
    "MemoryConfig",
    "Network",
    "NetworkConfig",
    "SimConfig",
    "Source",
    "Table",
    "Target",
    "Widths",
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
    "read_arch",
    "target_of",
    "typical_flit_ns",
    "write_network",
]
