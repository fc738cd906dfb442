"""Wrong modules by name: what is changed in the module of the thesis's layer, and what the reader says about it."""

import re
from dataclasses import dataclass

from tests.mlir.mutations import text_of

LOAD, SEND, HALT = '"pim.load"(', '"pim.channel_send"(', '"pim.halt"()'


@dataclass(frozen=True)
class WrongModule:
    """The first match of `pattern` in the text is replaced by `change`. `says`: the words of our reader.

    `everywhere`: False for what only our reader can know, such as the version.
    """

    pattern: str
    change: str
    says: str
    everywhere: bool = True

    @property
    def text(self) -> str:
        changed, count = re.subn(self.pattern, self.change, text_of("thesis"), count=1)
        assert count == 1, f"{self.pattern} is not in the module"
        return changed

    @property
    def line(self) -> int:
        """The line of the change, where most of them are reported."""
        found = re.search(self.pattern, text_of("thesis"))
        assert found is not None
        return text_of("thesis").count("\n", 0, found.start()) + 1


WRONG = {
    "an unknown operation": WrongModule(r'"pim\.store"\(', '"pim.fly"(', "no such operation"),
    "a load without an address": WrongModule(r'("pim\.load".*?)globalSrc = \d+ : i64', r"\1", "globalSrc is missing"),
    "an address that is a string": WrongModule(r"globalSrc = \d+ : i64", 'globalSrc = "7"', "globalSrc is no i64"),
    "a store without an address": WrongModule(r"\{globalDst = \d+ : i64\}", "{}", "globalDst is missing"),
    "a send without a channel": WrongModule(
        r'("pim\.channel_send".*?)channel = \d+ : i64, ', r"\1", "channel is missing"
    ),
    "a receive without a core": WrongModule(r'("pim\.channel_receive".*?), core = \d+ : i64', r"\1", "core is missing"),
    "a span that is a number": WrongModule(
        r'("pim\.load".*?globalSrc = \d+ : i64)', r"\1, span = 3 : i64", "span is no i64s"
    ),
    "a load with no buffer": WrongModule(
        r'("pim\.load")\(%\d+\)( \{.*?\}) : \(.*?\)', r"\1()\2 : ()", "has 0 operands"
    ),
    "a load with two buffers": WrongModule(
        r'("pim\.load")\((%\d+)\)( \{.*?\}) : \((.*?)\)', r"\1(\2, \2)\3 : (\4, \4)", "has 2 operands"
    ),
    "a buffer that is not allocated": WrongModule(r'("pim\.load"\()%\d+', r"\1%9999", "used before it is defined"),
    "a buffer that is allocated twice": WrongModule(r'(    %\d+ = "pim\.alloc".*\n)', r"\1\1", "is defined twice"),
    "a buffer of another size": WrongModule(r'("pim\.load".*?memref<)\d+', r"\g<1>9999", "not memref<9999xf32>"),
    "more operands than types": WrongModule(r'("pim\.load"\((%\d+))\)', r"\1, \2)", "2 operands, but 1 types"),
    "a step without a form": WrongModule(
        r'("pim\.(?:apply|vadd).*?)form = @f\d+', r"\1shift = 0 : i64", "form is missing"
    ),
    "a form that is a string": WrongModule(r"form = @f(\d+)", r'form = "f\1"', "form is no symbol"),
    "an allocation without a result": WrongModule(r'    %\d+ = ("pim\.alloc".*-> ).*', r"    \1()", "has 0 results"),
    "a buffer that is a tensor": WrongModule(r'("pim\.alloc".*?)memref', r"\1tensor", "is no memref"),
    "a core without its number": WrongModule(r"\{coreId = \d+ : i64\}", "{}", "coreId is missing"),
    "a core without a halt": WrongModule(r'    "pim\.halt".*\n', "", "does not end with pim.halt"),
    "an operation behind the halt": WrongModule(r'(    "pim\.halt".*\n)', r"\1\1", "is behind pim.halt"),
    "a core without a program": WrongModule(
        r'  "pim\.core"\(\) \(\{\n(?:    .*\n)*  \}\) ', '  "pim.core"() ', "has 0 regions"
    ),
    "a halt outside of a core": WrongModule(
        r'  "pim\.core"', '  "pim.halt"() : () -> ()\n  "pim.core"', "expected pim."
    ),
    "a form without its slots": WrongModule(r", slots = \[.*?\]", "", "slots is missing"),
    "a form without its operation": WrongModule(r'kind = "\w+", ', "", "kind is missing"),
    "two forms of one name": WrongModule(r'(  "pim\.form".*\n)', r"\1\1", "is defined twice"),
    "parameters that are an array": WrongModule(
        r"parameters = \{.*?\}, slots", "parameters = array<i64: 1>, slots", "parameters is no dictionary"
    ),
    "a probe of nothing": WrongModule(r"tensor = @t\d+, ", "", "tensor is missing"),
    "a group without weights": WrongModule(r", weights = dense_resource<\w+> : tensor<\w+>", "", "weights is missing"),
    "a brace too few": WrongModule(r"\}\) \{coreId", ") {coreId", "expected"),
    "another version": WrongModule(r"pim\.version = 1", "pim.version = 2", "version 2", everywhere=False),
    "another kind of floats": WrongModule('"modelled"', '"bfloat"', "pim.floats is", everywhere=False),
    "a form that is not there": WrongModule(r"form = @f\d+", "form = @f99", "no pim.form @f99", everywhere=False),
    "a tensor that is not there": WrongModule(r"tensor = @t0", "tensor = @t9", "no pim.tensor @t9", everywhere=False),
    "a span beyond the buffer": WrongModule(
        r'("pim\.load".*?globalSrc = \d+ : i64)',
        r"\1, span = array<i64: 0, 999>",
        "of 3 elements|of \\d+ elements",
        False,
    ),
    "no ONNX node": WrongModule(r'("pim\.load".*-> \(\)) loc.*', r"\1", "no ONNX node", everywhere=False),
    "a parameter of another type": WrongModule("relu = false", "relu = 3 : i64", "relu: 3 is no boolean", False),
    "a probe too few": WrongModule(r'    "pim\.probe".*\n', "", "has no probe", everywhere=False),
    "a slot of another shape": WrongModule(
        r"slots = \[memref<(\d+)x", r"slots = [memref<9\1x", "the slots|for a slot", everywhere=False
    ),
}
"""At least twenty that every tool refuses (`everywhere`), and some that only our reader knows."""

VERIFIED = {
    "a channel with one end": (r'(channel_send".*?)channel = \d+', r"\1channel = 99", "channel"),
    "a value that is never written": (r'    "pim\.load".*\n', "", "used before it is defined"),
    "an address beyond global memory": (r"globalSrc = \d+ : i64", "globalSrc = 99999 : i64", "global address 99999"),
    "a store over an input": (r"globalDst = \d+ : i64", "globalDst = 0 : i64", "global address 0"),
    "a matrix that the core does not have": (r"weights = array<i64: \d+", "weights = array<i64: 99", "array group"),
    "a channel beyond the input": (r"channel = 0 : i64, ", "channel = 2 : i64, ", "accesses bytes|channel"),
}
"""Modules that can be read, and that the verifier refuses: pattern, change, words."""
