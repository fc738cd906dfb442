"""Policies: bits of single layers, as a file that `raptor quantize` reads and writes."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from raptor.common.files import file_access
from raptor.common.files.schema_types import JsonArray, JsonObject, StrictSchema
from raptor.common.options import arguments

Operand = Literal["weights", "inputs"]
Goal = Literal["latency", "energy"]
WeightBits = Literal[4, 8]
InputBits = Literal[4, 8, 16]

UNITS: Mapping[Goal, str] = {"latency": "ns", "energy": "pJ"}
_LIMIT_BYTES = 2**22


class Policy(StrictSchema):
    """Bits of single layers, keyed by layer name. All other layers have the default bits."""

    version: Literal[1] = 1
    weights: JsonObject[WeightBits] = Field(default={}, description="bits of the weights of a layer")
    inputs: JsonObject[InputBits] = Field(default={}, description="bits of the integers that a layer reads")

    def to_json(self) -> bytes:
        """Returns the bytes of the file."""
        return file_access.model_to_json(self)


class PolicyStep(StrictSchema):
    """A step that the search kept, in the order in which it was taken."""

    layer: str
    operand: Operand
    bits: int
    cost: float = Field(description="latency in ns, or energy in pJ, after this step and those before it")
    noise: float = Field(description="noise at the outputs that this step alone adds, as a share of their squares")


class PolicySearch(StrictSchema):
    """Result of a policy search: the policy, and the cost of its program in the simulator."""

    goal: Goal
    budget: float = Field(description="wanted share of the cost with 8 bits everywhere")
    base: float = Field(description="cost with 8 bits everywhere: latency in ns, or energy of a sample in pJ")
    reached: float = Field(description="the same of the policy")
    policy: Policy
    steps: JsonArray[PolicyStep]
    compiled: int = Field(description="programs that were compiled and simulated")

    @property
    def ratio(self) -> float:
        return self.reached / self.base


def parse_policy(value: object) -> Policy:
    """Returns the policy of a `Policy`, a `PolicySearch` or a file. Raises `UserError` that names the invalid field."""
    if isinstance(value, Policy | PolicySearch):
        return value if isinstance(value, Policy) else value.policy
    file = arguments.parse_path("policy", value, expected="a file, or a policy that was found")
    return file_access.read_json_file(Policy, file.parent, file.name, limit_bytes=_LIMIT_BYTES)
