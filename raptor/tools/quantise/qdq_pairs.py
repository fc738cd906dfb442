"""Finds the Q/DQ pairs (QuantizeLinear, DequantizeLinear) of a model, and the tensor that each of them quantises."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from onnx import ModelProto, NodeProto, TensorProto

Q, DQ = "QuantizeLinear", "DequantizeLinear"
_INPUT = "_QuantizeLinear_Input"
"""Suffix that onnxruntime's quantiser gives to a model output before it is quantised."""


@dataclass(frozen=True, slots=True, eq=False)
class QdqPair:
    """A quantised activation: a QuantizeLinear and the DequantizeLinear that reads its codes.

    `tensor`: name in the float model. `source`: what `quantise` reads. `restored`: the dequantised tensor. `producer`:
    layer that makes the tensor, None for a model input. `activation`: the Relu or Clip after this layer, or "".
    """

    tensor: str
    source: str
    restored: str
    quantise: NodeProto
    producer: NodeProto | None
    activation: str = ""

    @property
    def op_type(self) -> str:
        if self.producer is None:
            return "input"
        return f"{self.producer.op_type} + {self.activation}" if self.activation else self.producer.op_type


@dataclass(frozen=True)
class QdqModel:
    """A QDQ model, with its tensors indexed by producer and readers."""

    proto: ModelProto

    @cached_property
    def constants(self) -> Mapping[str, TensorProto]:
        return {t.name: t for t in self.proto.graph.initializer}

    @cached_property
    def producers(self) -> Mapping[str, NodeProto]:
        return {o: n for n in self.proto.graph.node for o in n.output}

    @cached_property
    def readers(self) -> Mapping[str, list[tuple[NodeProto, int]]]:
        """The nodes that read each tensor, with the position of the input."""
        found: defaultdict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        for node in self.proto.graph.node:
            for position, name in enumerate(node.input):
                found[name].append((node, position))
        return found

    def pairs(self) -> Iterator[QdqPair]:
        """Yields the quantised activations in the order of the model; weights are left out.

        Activations that are requantised for one layer are left out, too: the float model does not have them.
        """
        outputs = {v.name for v in self.proto.graph.output}
        for node in self.proto.graph.node:
            if node.op_type != Q:
                continue
            restored = [n.output[0] for n, _ in self.readers[node.output[0]] if n.op_type == DQ]
            source = node.input[0]
            tensor = restored[0] if restored and restored[0] in outputs else source.removesuffix(_INPUT)
            producer = self.producers.get(source)
            if restored and (producer is None or producer.op_type != DQ):
                yield QdqPair(tensor, source, restored[0], node, producer)

    def layer_pairs(self) -> Iterator[QdqPair]:
        """Yields `pairs`, with a layer and the Relu or Clip after it merged into one pair.

        The quantiser clips the layer's result to the range of the activation, so noise before that means nothing.
        """
        pairs = list(self.pairs())
        before = {p.restored: p for p in pairs}
        inner = {p.restored for p in pairs if self._is_cut(p)}
        for pair in (p for p in pairs if p.restored not in inner):
            node = pair.producer
            if node is not None and node.input and node.input[0] in inner:
                pair = replace(pair, producer=before[node.input[0]].producer, activation=node.op_type)
            yield pair

    def _is_cut(self, pair: QdqPair) -> bool:
        """Checks whether the only reader of a pair is a Relu or Clip whose result is quantised as well."""
        readers = self.readers[pair.restored]
        if pair.producer is None or len(readers) != 1 or readers[0][0].op_type not in ("Relu", "Clip"):
            return False
        return self._is_quantised(readers[0][0].output[0])

    def weight_dequantisers(self) -> Iterator[NodeProto]:
        """Yields the DequantizeLinear nodes of weights and biases."""
        yield from (n for n in self.proto.graph.node if n.op_type == DQ and n.input[0] in self.constants)

    def float_nodes(self) -> Iterator[NodeProto]:
        """Yields the nodes that compute floats: some input is not dequantised, or some output is not quantised."""
        kinds = {v.name: v.type.tensor_type.elem_type for v in self.proto.graph.value_info}
        for node in self.proto.graph.node:
            if node.op_type in (Q, DQ):
                continue
            reads = (self._is_dequantised(name) for name in node.input if kinds.get(name) == TensorProto.FLOAT)
            writes = (self._is_quantised(name) for name in node.output if name)
            if not (all(reads) and all(writes)):
                yield node

    def _is_dequantised(self, name: str) -> bool:
        producer = self.producers.get(name)
        return producer is not None and producer.op_type == DQ

    def _is_quantised(self, name: str) -> bool:
        readers = self.readers.get(name, [])
        return bool(readers) and all(n.op_type == Q for n, _ in readers)
