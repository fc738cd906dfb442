"""The choice of rewrites: which layers the vector unit computes, and which are computed by another layer's products."""

from dataclasses import dataclass
from typing import Literal

from raptor.common.strict import Known


@dataclass(frozen=True, slots=True)
class OnVectorUnit(Known):
    """A depthwise layer without crossbars: the core that holds its input computes it with vector products."""

    kind: Literal["vector"] = "vector"


@dataclass(frozen=True, slots=True)
class JoinedLayer(Known):
    """A layer that the products of another `layer` compute, too: both multiply pixels of one image.

    `layer`: the key of the other one, whose record is for both: their output channels side by side, or their sum.
    """

    layer: str
    kind: Literal["joined"] = "joined"
