"""The folder of a chip from components: architecture file, network table and device file."""

from pathlib import Path

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.target import arch as architectures
from raptor.target.arch import NETWORK_FILE, Target
from raptor.target.components.build_chip import build_chip
from raptor.target.components.chip_device import make_device
from raptor.target.components.component_file import ComponentFile

ARCH_FILE, DEVICE_FILE = "arch.json", "device.json"


def write_chip_folder(parts: ComponentFile, folder: Path, *, force: bool = False) -> tuple[Target, tuple[str, ...]]:
    """Writes the files of a chip. Returns its target, and the names of the files; the architecture is written last.

    Raises `UserError` for components that do not fit together, and for files that would be replaced without `force`.
    """
    device = make_device(parts)
    target = architectures.make_target(build_chip(parts))
    names = (ARCH_FILE, NETWORK_FILE, *((DEVICE_FILE,) if device is not None else ()))
    for name in names:
        if (folder / name).exists() and not force:
            raise UserError(f"{folder / name}: exists; choose another folder with -o, or replace it with --force")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"-o {folder}: not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UserError(f"-o {folder}: cannot be written: {e.strerror or e}") from e
    with file_access.open_atomic("-o", folder / NETWORK_FILE) as stream:
        stream.writelines(architectures.write_network(target))
    if device is not None:
        file_access.write_atomic("-o", folder / DEVICE_FILE, file_access.model_to_json(device))
    file_access.write_atomic("-o", folder / ARCH_FILE, architectures.arch_json(target))
    return target, names
