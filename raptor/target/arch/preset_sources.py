"""Sources of the numbers of each preset, and lists of the unknown ones; architecture files have no field for them.

Numbers that a preset leaves out, or that `unknown` names, are defaults of the simulator or of the preset `bench`. They
are not measured.
"""

from dataclasses import dataclass

_TABLE = "README of PIMCOMP-NN (github.com/sunxt99/PIMCOMP-NN, commit 2ed10c8, Apache-2.0), table of architectures"
_REST = "everything but cores, crossbars a core and crossbar size: the simulator's defaults"
_ORDER = "whether the table gives rows x columns (taken so) or columns x rows"
_MESH = "the network: a mesh of 2 ns a router and 46 pJ a flit, as in the simulator's example"
_RUN = "sim_config is ours: latency mode with a timeout"


@dataclass(frozen=True, slots=True)
class PresetSource:
    """The chip that a preset describes, the documents with its numbers, and the numbers that are not known."""

    summary: str
    source: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def _from_table(summary: str, *unknown: str) -> PresetSource:
    """Makes the source of a preset that has only cores, crossbars and sizes, from a table of PIMCOMP-NN."""
    return PresetSource(summary, (_TABLE,), (_REST, *unknown, _MESH))


PRESET_SOURCES: dict[str, PresetSource] = {
    "bench": PresetSource(
        "the chip of the figures in this repository: PIMCOMP-NN's default with 8-bit cells and 144 cores",
        ("config.json of PIMCOMP-NN (commit 2ed10c8)", "cell_precision 8 and core_cnt 144 are ours"),
        ("static power of the digital parts (0)", "memory sizes (the simulator's 1 MiB, not enforced)", _MESH, _RUN),
    ),
    "pimcomp": PresetSource(
        "PIMCOMP-NN's default: 136 cores of 64 crossbars 128x128, 2-bit cells, 8-bit ADCs",
        ("config.json of PIMCOMP-NN (commit 2ed10c8); chip_config unchanged",),
        (
            "static power of the digital parts (0)",
            "memory sizes (the simulator's 1 MiB, not enforced)",
            "PIMCOMP counts logical 128-column arrays; with 2-bit cells an 8-bit weight takes four columns",
            _MESH,
            _RUN,
        ),
    ),
    "isaac": PresetSource(
        "ISAAC-CE (ISCA 2016): 168 tiles of 96 crossbars 128x128, 2-bit cells, one 8-bit 1.28 GS/s ADC a crossbar",
        (
            _TABLE + " (cores, crossbars, size)",
            "Shafiee et al., ISAAC, ISCA 2016, table of components, second-hand: 100 ns a read, ADC 16 mW for 8, "
            "arrays 2.4 mW for 8, DACs 4 mW for 1024, shift-and-add 0.2 mW for 4, eDRAM 64 kB of 20.7 mW, "
            "output register 0.23 mW",
            "power of a DAC: 128 times the paper's, which is for the 100 ns of a read; the simulator multiplies it by "
            "the 0.78125 ns of dac_latency_cycle",
        ),
        (
            "power of sample-and-hold",
            "cycles of the output buffer (0, so that 128 conversions take the 100 ns of a read)",
            "widths, latencies and energies of the memories and the vector unit (as in bench)",
            "power of controllers, routers and the off-chip link (not modelled by the simulator)",
            _MESH,
            _RUN,
        ),
    ),
    "puma": PresetSource(
        "PUMA (ASPLOS 2019): 138 tiles of 8 cores x 16 crossbars 128x128, 2-bit cells; a tile is a core here",
        (
            _TABLE + " (cores, crossbars, size)",
            "puma-simulator (commit a206f75): 1 ns cycle, 128 ns a crossbar read at 0.3 mW, 8-bit ADC of 1.8 mW and "
            "0.2 mW static, 1-bit DAC of 0.0035 mW, 64 kB eDRAM; a product of 16 bits takes 2304 ns in the paper",
            "power of a DAC: 128 times the source's, which is for a read of 128 ns; the simulator takes it for 1 ns",
        ),
        (
            "how the 2304 ns are made up: 1 ADC a crossbar, one column a ns, no output buffer cycle give 2209 ns",
            "widths, latencies and energies of the memories and the vector unit (as in bench)",
            _MESH,
            _RUN,
        ),
    ),
    "sre": _from_table("SRE (ISCA 2019): 168 cores of 12 x 8 crossbars 128x128"),
    "forms": _from_table("FORMS (ISCA 2021): 168 cores of 12 x 8 crossbars 128x128"),
    "isscc20-15.4": _from_table("ISSCC 2020 paper 15.4: one core of 8 crossbars 512x512"),
    "isscc21-16.1": _from_table("ISSCC 2021 paper 16.1: one core of 8 crossbars 1024x512", _ORDER),
    "isscc22-11.4": _from_table("ISSCC 2022 paper 11.4: one core of 32 crossbars 1024x256", _ORDER),
    "isscc23-16.6": _from_table("ISSCC 2023 paper 16.6: 4 cores of 8 crossbars 512x1024", _ORDER),
}
