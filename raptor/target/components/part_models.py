"""Models of parts: fills in the numbers of ADCs and of memories that name a model in place of numbers."""

from typing import Any, NoReturn, TypeVar

from raptor.common.errors import UserError
from raptor.target.components.adc_model import estimate_adc
from raptor.target.components.component_file import AdcPart, ChipPart, ComponentFile, MemoryPart
from raptor.target.components.sram_model import estimate_sram

_Part = TypeVar("_Part", bound=ChipPart)

_SURVEY = "regression over Murmann's survey: arXiv 2404.06553, hwcomponents-adc 1.0.21; low or high: ZigZag's model"
_SRAM = "CACTI of hwcomponents-cacti 1.0.40, interpolated in raptor/target/components/sram.csv"


def fill_from_models(parts: ComponentFile) -> ComponentFile:
    """Returns the file with the numbers of its models.

    Raises `UserError` for a part with neither numbers nor a model, with both, or outside of the model's range.
    """
    update = {
        "adc": _fill_adc(parts.adc, parts.node_nm),
        "local_memory": _fill_memory("local_memory", parts.local_memory, parts.node_nm),
        "global_memory": _fill_memory("global_memory", parts.global_memory, parts.node_nm),
    }
    return parts.model_copy(update=update)


def _fill_adc(adc: AdcPart, node_nm: float) -> AdcPart:
    if (adc.rate_gsps is None) == (adc.bit_ns is None):
        refuse_parts("adc: give either rate_gsps or bit_ns")
    if adc.model is None:
        if adc.pj is None:
            refuse_parts('adc: give pj, the energy of a conversion, or model = "survey"')
        return adc
    try:
        found = estimate_adc(adc.bits, 1 / adc.conversion_ns, node_nm)
    except ValueError as e:
        refuse_parts(f"adc: {e}")
    low, high = sorted((found.um2, found.other_um2))
    cost = {"pj": found.pj, "static_mw": found.static_mw, "um2": found.um2, "low_um2": low, "high_um2": high}
    return _with_cost("adc", adc, cost, _SURVEY)


def _fill_memory(name: str, memory: MemoryPart, node_nm: float) -> MemoryPart:
    if memory.model is None:
        if memory.read_ns is None or memory.write_ns is None:
            refuse_parts(f'{name}: give read_ns and write_ns, or model = "sram"')
        return memory
    try:
        found = estimate_sram(memory.bytes, memory.width, node_nm)
    except ValueError as e:
        refuse_parts(f"{name}: {e}")
    energies = {"read_pj": found.read_pj, "write_pj": found.write_pj, "static_mw": found.static_mw}
    return _with_cost(name, memory, energies | {"read_ns": found.ns, "write_ns": found.ns, "um2": found.um2}, _SRAM)


def _with_cost(name: str, part: _Part, cost: dict[str, Any], source: str) -> _Part:
    given = sorted({*cost, "low_um2", "high_um2", "kind", "cite"} & part.model_fields_set)
    if given:
        refuse_parts(f"{name}.{given[0]}: the model gives it; leave one of them out")
    return part.model_copy(update=cost | {"kind": "MODELLED", "cite": source})


def refuse_parts(reason: str) -> NoReturn:
    """Raises `UserError` for components that do not fit together."""
    raise UserError(f"components: {reason}")
