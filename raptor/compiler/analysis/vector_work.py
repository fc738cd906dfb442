"""Work of the vector units for a node, as `raptor explain` lists it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VectorWork:
    """Least time, in ns, that all vector units together work for an ONNX node."""

    node: str
    op_type: str
    work_ns: float
