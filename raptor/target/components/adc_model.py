"""Energy and area of an ADC by a regression over published converters.

The model and its coefficients are those of hwcomponents-adc 1.0.21 (MIT): Andrulis et al., "Modeling
Analog-Digital-Converter Energy and Area for Compute-In-Memory Accelerator Design", arXiv 2404.06553, fitted to
Murmann's survey of ADCs. It is optimistic about energy: half of the converters of the survey take more than 2.7 times
as much. Its bits are effective bits.
"""

import math
from dataclasses import dataclass

FEWEST_BITS, MOST_BITS = 4, 20
NODES_NM = (7.0, 130.0)
MOST_GSPS = 10.0
_FOM_FREQUENCY, _FOM_INTERCEPT = -2.8719030399529957, 213.7806687348118
_FOM_BOUNDS = (128.3068287398817, 192.71705895943293)
"""Bounds of the figure of merit for 0 and 20 bits; between them it grows by the same amount with each bit."""
_TECH_INTERCEPT, _TECH_SLOPE, _BITS_SLOPE = 26.0496215686518, 1.8800369206815004, -2.8291256050594527
_RESIDUAL = -1.4702022133784405
_AREA_NODE, _AREA_FREQUENCY, _AREA_ENERGY = 0.9932794744745022, 0.18071538424508238, 0.29912426192653485
_AREA_INTERCEPT = 1.3461916439910742
_LEAKAGE = 0.2
"""Part of the energy at full rate that is static, by decree of the model."""


@dataclass(frozen=True, slots=True)
class AdcCost:
    """Cost of an ADC: energy of a conversion, static power, area, and the area by another model."""

    pj: float
    static_mw: float
    um2: float
    other_um2: float


def estimate_adc(bits: float, rate_gsps: float, node_nm: float) -> AdcCost:
    """Estimates an ADC of `bits` effective bits that converts `rate_gsps` samples a nanosecond.

    `other_um2` is the area of ZigZag's model for 28 nm, scaled with the square of the node. Raises `ValueError` outside
    the range of the converters to which the model was fitted.
    """
    low, high = NODES_NM
    if not (FEWEST_BITS <= bits <= MOST_BITS and 0 < rate_gsps <= MOST_GSPS and low <= node_nm <= high):
        raise ValueError(
            f"the model of ADCs is for {FEWEST_BITS} to {MOST_BITS} bits, up to {MOST_GSPS:g} GS/s and nodes of "
            f"{low:g} to {high:g} nm, not for {bits:g} bits, {rate_gsps:g} GS/s and {node_nm:g} nm"
        )
    energy_pj = _energy_pj(bits, rate_gsps * 1e9, node_nm)
    log_area = _AREA_NODE * math.log(node_nm) + _AREA_FREQUENCY * math.log(rate_gsps * 1e9)
    log_area += _AREA_ENERGY * math.log(energy_pj) + _AREA_INTERCEPT
    other_um2 = 10 ** (-0.0369 * bits + 1.206) * 2**bits * (node_nm / 28) ** 2
    return AdcCost((1 - _LEAKAGE) * energy_pj, _LEAKAGE * energy_pj * rate_gsps, math.exp(log_area), other_um2)


def _energy_pj(bits: float, hertz: float, node_nm: float) -> float:
    """Returns the energy of a conversion with leakage, from the Schreier figure of merit (dB) and the SNDR (dB)."""
    least, most = _FOM_BOUNDS
    bound = least + (most - least) * math.ceil(bits) / MOST_BITS
    merit = min(_FOM_INTERCEPT + _FOM_FREQUENCY * math.log(hertz), bound)
    sndr = bits * 20 * math.log10(2) + 10 * math.log10(1.5)
    fitted = math.exp(_TECH_INTERCEPT + _TECH_SLOPE * math.log(node_nm) + _BITS_SLOPE * math.log(bits) + _RESIDUAL)
    return fitted / (2 * 10 ** ((merit - sndr) / 10))
