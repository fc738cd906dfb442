"""Writes docs/reference/mlir.md: the operations of the dialects, from raptor/mlir/dialect.py."""

from docgen.markdown import GENERATED_NOTE, format_table
from raptor.mlir.dialect import OpSpec, all_dialects, spat_classes, step_classes
from raptor.mlir.pim_writer import VERSION

HEAD = f"""# MLIR

{GENERATED_NOTE.format("`raptor/mlir/dialect.py`")}
`raptor compile --dump-ir DIR --dump-format mlir` writes three levels as MLIR:

- the ONNX model, after `load`, in the dialect `onnx` of onnx-mlir (`result_names` and `onnx.opsets` are RAPTOR's own);
- SpatialIR with cores, after `partition`, `place_cores` and `schedule`, in the dialect `spat`;
- PimIR, after `lower`, `keep_constants`, `reuse_operands` and `allocate`, in the dialect `pim`.

[Intermediate forms](forms.md) says what the levels are. [Change a program in MLIR](../how-to/mlir.md) shows how to use
the files.

- The module says the version of the dialect, which is {VERSION} (`pim.version`), the pass that made it (`pim.pass`),
  and a digest of its text as RAPTOR wrote it (`pim.source`); `spat` has the same.
- Operations are written in MLIR's generic form, one on a line. Names of values have no meaning.
- `f32` is a float of the width that the chip has (`pim.floats = "modelled"`), or float32 (`"float32"`, in programs that
  also have integers). Integers are `i8`, `i32` and others.
- A buffer of `pim` is a flat memref, which operations see in the shapes of the slots of their form. A tile of `spat` is
  a tensor of rows, width and channels.
- The location of an operation is its ONNX node: `loc("conv1")`.
- Values of weights and constants are handles, `dense_resource<...>`. The values come from the ONNX model.
- Global addresses and addresses of buffers count bytes; spans count elements.
- In `spat`, the order of the text is the order of work. After `place_cores` only cores may be changed, and after
  `schedule` only the order.
"""


def render_page() -> str:
    shared = {f"pim.{name}" for name in step_classes()} | {f"spat.{name}" for name in spat_classes()}
    parts = [HEAD]
    for dialect, specs in all_dialects().items():
        parts += [_entry(spec) for spec in specs.values() if spec.name not in shared]
        steps = [spec for spec in specs.values() if spec.name in shared]
        listed = ", ".join(f"`{name}` ({each.meaning})" for name, each in steps[0].attributes.items())
        parts += [
            f"## Operations of {dialect} with forms\n",
            f"Their attributes are {listed}.\n",
            format_table(("operation", "what"), [(f"`{spec.name}`", spec.meaning) for spec in steps]),
        ]
    return "\n".join(parts)


def _entry(spec: OpSpec) -> str:
    rows = [
        (f"`{name}`", each.kind, "yes" if each.optional else "", each.meaning) for name, each in spec.attributes.items()
    ]
    table = format_table(("attribute", "kind", "optional", "what"), rows) if rows else ""
    return f"## {spec.name}\n\n{spec.meaning[0].upper()}{spec.meaning[1:]}.\n\n{table}"
