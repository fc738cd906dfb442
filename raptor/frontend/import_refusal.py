"""Refusals: why an importer cannot add a node to the Graph."""


class ImportRefusal(Exception):  # noqa: N818 (an answer, not a failure)
    """Raised by an importer: why the chip cannot compute this node. Collected into one `UnsupportedError`."""


class NeedsConstantError(ImportRefusal):
    """Raised by an importer whose input `name` must be a constant."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"'{name}' must be a constant")
