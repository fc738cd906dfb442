"""Attributes of ONNX nodes."""

from typing import Any

from onnx import NodeProto, helper


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes of a node as Python values, keyed by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
