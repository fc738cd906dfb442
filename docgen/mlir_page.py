"""Writes docs/reference/mlir.md: the operations of the dialects, from raptor/mlir/dialect.py."""

from docgen.markdown import GENERATED_NOTE, format_table
from raptor.mlir.dialect import OpSpec, pim_dialect, step_classes
from raptor.mlir.pim_writer import VERSION

HEAD = f"""# MLIR

{GENERATED_NOTE.format("`raptor/mlir/dialect.py`")}
`raptor compile --dump-ir DIR --dump-format mlir` writes [PimIR](forms.md) as MLIR, in the dialect `pim`.
[Change a program in MLIR](../how-to/mlir.md) shows how to use it.

- The module says the version of the dialect, which is {VERSION} (`pim.version`).
- Operations are written in MLIR's generic form, one on a line. Names of values have no meaning.
- The module says the pass that made it (`pim.pass`), and a digest of its text as RAPTOR wrote it (`pim.source`).
- `f32` is a float of the width that the chip has (`pim.floats = "modelled"`), or float32 (`"float32"`, in programs that
  also have integers). Integers are `i8`, `i32` and others.
- A buffer is a flat memref. Operations see it in the shapes of the slots of their form.
- The location of an operation is its ONNX node: `loc("conv1")`.
- Weights are handles, `dense_resource<...>`, without values. The values come from the ONNX model.
- Global addresses and addresses of buffers count bytes; spans count elements.
"""


def render_page() -> str:
    steps = {f"pim.{name}" for name in step_classes()}
    specs = pim_dialect().values()
    return "\n".join(
        [
            HEAD,
            *(_entry(spec) for spec in specs if spec.name not in steps),
            "## Steps\n",
            "Each has the attributes `form` (a symbol) and, with matrices, `shift`, which is added to their numbers.\n",
            format_table(("operation", "what"), [(f"`{s.name}`", s.meaning) for s in specs if s.name in steps]),
        ]
    )


def _entry(spec: OpSpec) -> str:
    rows = [
        (f"`{name}`", each.kind, "yes" if each.optional else "", each.meaning) for name, each in spec.attributes.items()
    ]
    table = format_table(("attribute", "kind", "optional", "what"), rows) if rows else ""
    return f"## {spec.name}\n\n{spec.meaning[0].upper()}{spec.meaning[1:]}.\n\n{table}"
