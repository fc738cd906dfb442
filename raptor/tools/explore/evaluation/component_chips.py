"""Chips of a study that varies components: each point has a folder with its architecture and its device."""

import hashlib
import json
from collections.abc import Mapping

from raptor.target.components.chip_folder import ARCH_FILE, DEVICE_FILE, write_chip_folder
from raptor.target.components.component_file import read_component_file
from raptor.tools.explore.study.search_space import ParameterValue, resolve_file
from raptor.tools.explore.study.study_file import Study

_PREFIX = "components."


def prepare_chip(study: Study, point: Mapping[str, ParameterValue]) -> tuple[str, str | None] | None:
    """Writes the chip of a point beside the study, unless it is there. Returns its architecture and its device file.

    None for a study without components. Raises `UserError` for components that do not fit together.
    """
    source = study.file.study.components
    if source is None:
        return None
    values = {name.removeprefix(_PREFIX): value for name, value in point.items() if name.startswith(_PREFIX)}
    changes = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    parts = read_component_file(resolve_file(study.folder, source), changes)
    key = hashlib.sha256(parts.model_dump_json().encode()).hexdigest()[:16]
    folder = study.folder / f"{study.name}-chips" / key
    if not (folder / ARCH_FILE).is_file():
        write_chip_folder(parts, folder, force=True)
    device = folder / DEVICE_FILE
    return str(folder / ARCH_FILE), str(device) if device.is_file() else None
