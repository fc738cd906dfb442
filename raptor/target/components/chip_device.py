"""The device file of a chip from components: the cells of a preset, with the bits of the component file."""

from raptor.common.errors import UserError
from raptor.target.cell_models import Adc
from raptor.target.components.component_file import ComponentFile
from raptor.target.device_file import DeviceFile, device_presets, load_device


def make_device(parts: ComponentFile) -> DeviceFile | None:
    """Returns the device, so that accuracy is measured with the converters that cost energy, time and area.

    None if the file names no device. Raises `UserError` for a preset that does not exist.
    """
    if parts.device is None:
        return None
    name = parts.device.preset
    if name not in device_presets():
        raise UserError(f"components: device.preset {name}: expected one of: {', '.join(device_presets())}")
    base = load_device(name)
    adc = (base.read_out.adc or Adc(bits=parts.adc.bits)).model_copy(update={"bits": parts.adc.bits})
    bits = {
        "cell_bits": parts.crossbar.cell_bits,
        "dac_bits": parts.dac.bits,
        "rows_at_once": parts.dac.per_crossbar or parts.crossbar.rows,
        "adc": adc,
    }
    source = f"{base.source}; bits of cells, DACs and ADCs from a component file"
    update = {"name": f"{base.name} from components", "source": source[:2000]}
    return base.model_copy(update=update | {"read_out": base.read_out.model_copy(update=bits)})
