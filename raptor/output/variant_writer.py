"""Writes an output directory that differs from another in a few files: for one chip of a product."""

import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import files, writer
from raptor.output.files import OutputManifest


def write_variant(
    source: Path, manifest: OutputManifest, contents: Mapping[str, bytes], folder: Path, *, force: bool
) -> Path:
    """Writes a copy of `source`, whose manifest is given, with other or more files `contents`. Returns the folder.

    `force`: replace an output directory. Raises `UserError` if the folder may not be replaced or written.
    """
    refuse_same_folder(folder, source)
    entries = {
        name: files.FileEntry(size_bytes=len(content), sha256=sha256(content).hexdigest())
        for name, content in contents.items()
    }
    changed = manifest.model_copy(update={"files": {**manifest.files, **entries}})
    written = {**contents, files.MANIFEST: file_access.model_to_json(changed)}
    with writer.replace_folder(folder, force=force) as temporary:
        for name in {*changed.files, files.MANIFEST}:
            (temporary / name).parent.mkdir(exist_ok=True)
            if name in written:
                (temporary / name).write_bytes(written[name])
            else:
                shutil.copyfile(source / name, temporary / name)
    return folder


def refuse_same_folder(folder: Path, source: Path) -> None:
    """Raises `UserError` if a folder to write is the program itself."""
    if folder.exists() and os.path.samefile(folder, source):
        raise UserError(f"-o {folder}: is the program itself; what belongs to one chip needs a folder of its own")
