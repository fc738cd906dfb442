"""Compares RAPTOR's models of ADCs and memories with the estimates of the package hwcomponents."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from raptor.common.errors import UserError
from raptor.target.components.component_file import AdcPart, ComponentFile, MemoryPart

_OLDEST_PYTHON = (3, 12)


def compare_with_hwcomponents(parts: ComponentFile) -> list[str]:
    """Returns a line for each ADC and memory of `parts`: area and energy here, by hwcomponents, and their ratio.

    Raises `UserError` where the package or its Python is missing. If its CACTI does not start,
    the line says so.
    """
    if sys.version_info < _OLDEST_PYTHON:
        this = ".".join(map(str, sys.version_info[:2]))
        raise UserError(
            f"--witness: the package hwcomponents needs Python 3.12; this is {this}. "
            "RAPTOR's own models of ADCs and memories give the chip without it"
        )
    memories = {"local memory": parts.local_memory, "global memory": parts.global_memory}
    lines = [_compare("ADC", parts.adc, lambda: _estimate_adc(parts.adc, parts.node_nm))]
    for name, memory in memories.items():
        lines.append(_compare(name, memory, lambda memory=memory: _estimate_sram(memory, parts.node_nm)))
    return lines


def _compare(name: str, part: AdcPart | MemoryPart, estimate: Callable[[], tuple[float, float]]) -> str:
    try:
        um2, pj = estimate()
    except UserError:
        raise
    except Exception as e:  # the package raises whatever its tools raise
        first = (str(e).strip().splitlines() or [""])[0]
        return f"witness        {name}: hwcomponents did not answer ({type(e).__name__}: {first[:120]})"
    here = part.pj if isinstance(part, AdcPart) else part.read_pj
    texts = [_ratio_text(what, ours, theirs) for what, ours, theirs in (("um2", part.um2, um2), ("pJ", here, pj))]
    return f"witness        {name}: {', '.join(texts)}"


def _ratio_text(unit: str, ours: float | None, theirs: float) -> str:
    if not ours:
        return f"{unit} not known, hwcomponents {theirs:.4g}"
    return f"{ours:.4g} {unit}, hwcomponents {theirs:.4g} ({ours / theirs:.3f} of it)"


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise UserError(f"--witness: {e}; install it with pip install {package.replace('_', '-')}") from e


def _estimate_adc(adc: AdcPart, node_nm: float) -> tuple[float, float]:
    """Returns area (um2) and energy of a conversion (pJ) without leakage, as the package has it."""
    model = _import("hwcomponents_adc").ADC(adc.bits, node_nm * 1e-9, 1e9 / adc.conversion_ns)
    return model.area * 1e12, model.convert().energy * 1e12


def _estimate_sram(memory: MemoryPart, node_nm: float) -> tuple[float, float]:
    """Returns area (um2) and energy of a read (pJ)."""
    sram = _import("hwcomponents_cacti").SRAM(node_nm * 1e-9, width=8 * memory.width, size=8 * memory.bytes)
    return sram.area * 1e12, sram.read().energy * 1e12
