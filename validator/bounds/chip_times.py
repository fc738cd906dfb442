"""Times of pimsim-nn's instructions that no program can beat, as exact fractions, from an architecture file."""

from fractions import Fraction
from math import ceil
from typing import Any


class CertificateRefused(Exception):  # noqa: N818 (what happened, as its reader sees it)
    """A certificate proves no bound for this model on this chip, or there is no bound of this kind."""


class ChipTimes:
    """Least times, in ns, on a chip whose cores execute one instruction at a time (docs/developers/target.md, 4).

    A product with x crossbars side by side takes at least `base_ns + x * crossbar_ns`. A crossbar has `rows` inputs and
    `outputs` results. Beats that are not full and loads of registers are left out.
    """

    def __init__(self, arch: dict[str, Any], weight_bits: int, input_bits: int, sum_bits: int) -> None:
        chip, (self.bytes, self.sum_bytes) = arch["chip_config"], ((bits + 7) // 8 for bits in (input_bits, sum_bits))
        core = chip["core_config"]
        matrix, local, memory = core["matrix_config"], core["local_memory_config"], chip["global_memory_config"]
        if core["rob_size"] != 1:
            raise CertificateRefused("the instructions of a core overlap (rob_size above 1)")
        self.cores, self.xbars, (self.rows, columns) = chip["core_cnt"], matrix["xbar_array_count"], matrix["xbar_size"]
        self.outputs = matrix["cell_precision"] * columns // weight_bits
        if min(self.cores, self.xbars, self.rows, self.outputs) < 1 or max(self.rows, self.outputs, self.xbars) > 2**16:
            raise CertificateRefused("a crossbar holds no weight, or is larger than 65,536")
        self._read, self._write = (_byte_ns(local, key) for key in ("read_latency_cycle", "write_latency_cycle"))
        self._step = Fraction(core["vector_latency_cycle"]) / core["vector_width"]
        rounds = input_bits // matrix["dac_resolution"] * (self.rows // matrix["dac_count"])
        front = matrix["dac_latency_cycle"] + matrix["sample_hold_latency_cycle"]
        front += ceil(Fraction(matrix["xbar_latency"]) / Fraction(matrix["period"]))
        shift, adc = (
            matrix["shift_adder_latency_cycle"] + matrix["output_buffer_latency_cycle"],
            matrix["adc_latency_cycle"],
        )
        back = adc + shift + (columns // matrix["adc_count"] - 1) * max(adc, shift)
        stages = rounds * (front + back)
        if matrix["pipeline_mode"] or not rounds:
            stages = front + back + (rounds - 1) * max(front, back)  # without a round: the faster stage alone
        self.base_ns = 8 * self.rows * self.bytes * self._read + stages * Fraction(matrix["period"])
        self.base_ns += 3 * Fraction(core["period"])  # to start a product, and to see its end
        self.crossbar_ns = self.outputs * self.sum_bytes * self._write
        get, put = (_byte_ns(memory, key) * self.bytes for key in ("read_latency_cycle", "write_latency_cycle"))
        self.port_load_ns, self.port_store_ns = get, put
        self.load_ns, self.store_ns = get + self._write * self.bytes, put + self._read * self.bytes

    def vector_ns(self, operands: int, size: int, results: int = 1) -> Fraction:
        """Returns the time of an element of a vector function, given the bytes of an element; `results`: 1 or 0."""
        return operands * size * self._read + self._step + results * size * self._write


def _byte_ns(memory: dict[str, Any], cycles: str) -> Fraction:
    return Fraction(memory[cycles]) * Fraction(memory["period"]) / memory["data_width"]
