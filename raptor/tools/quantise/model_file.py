"""A model that a function has made, as the content of an ONNX file."""

from dataclasses import dataclass
from pathlib import Path

from raptor.common.files import file_access
from raptor.common.options import arguments


@dataclass(frozen=True, slots=True, eq=False)
class ModelFile:
    """Content of an ONNX file."""

    onnx_bytes: bytes

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Writes the ONNX file atomically and returns its path.

        `force`: replace an existing file. Raises `UserError` if the file may not be replaced or cannot be written.
        """
        target = arguments.parse_path("path", path, expected="the path of a file")
        file_access.check_file_replaceable("-o", target, force=arguments.parse_flag("force", force))
        file_access.write_atomic("-o", target, self.onnx_bytes)
        return target
