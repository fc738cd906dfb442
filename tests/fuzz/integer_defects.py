"""Planted defects of integers: scales, zero points, rounding, tables, widths and bytes. See `tests.fuzz.defects`."""
# ruff: noqa: E501 one defect a line

from tests.fuzz.defect import Defect

EMIT, VIRTUAL, WORDS, SKELETONS = (
    f"raptor/codegen/{n}.py" for n in ("emit", "registers", "emit_integers", "skeletons")
)
TILES, OPERATIONS = (f"raptor/spatial/{n}.py" for n in ("integer_tiles", "integer_operations"))
RECIPES, HORNER, REQUANTISE = (f"raptor/graph/{n}.py" for n in ("recipes", "horner", "requantise"))
CODES, SCALES, STEPS, VIEWS, TABLES = (
    f"raptor/frontend/{n}.py" for n in ("codes", "read_quantiser", "integers", "views", "tables")
)
WEIGHTED, SUMS, ON_CODES, QLINEAR, QUANTISE = (
    f"raptor/frontend/operators/{n}.py" for n in ("weighted", "sums", "on_codes", "qlinear", "quantise")
)
FOLD = "raptor/transforms/fold_relu.py"
ELEMENT, CONTENTS, MEMORY = "raptor/target/element.py", "raptor/output/contents.py", "raptor/pim/global_memory.py"

INTEGER_DEFECTS: tuple[Defect, ...] = (
    # Scales and zero points
    Defect(QUANTISE, "offset = np.asarray(tensor.coding.offset - by.zero_point, np.int64)", "offset = np.asarray(tensor.coding.offset, np.int64)"),
    Defect(QUANTISE, "Coded((value.astype(np.int64) - by.zero_point)", "Coded((value.astype(np.int64))"),
    Defect(VIEWS, "zero = int(by.zero_point.item()) - by.code.offset\n        low, high", "zero = int(by.zero_point.item())\n        low, high"),
    Defect(VIEWS, "step = np.asarray(by.scale * term.count.astype(np.float32), np.float32)", "step = np.asarray(by.scale, np.float32)"),
    Defect(VIEWS, "term.scale.item() != by.scale.item()", "by.scale.item() == 0"),
    Defect(VIEWS, "or term.offset.item() + zero != 0 or", "or"),
    Defect(VIEWS, "table = (quantised(self.values, by) - by.code.offset)", "table = (quantised(self.values, by) - by.code.offset + 1).clip(-128, 127)"),
    Defect(VIEWS, "by) for b in (self.low, self.high)]", "by) for b in (self.low, math.inf)]"),
    Defect(CODES, "rounded = np.rint(np.asarray(values, np.float32) / by.scale)", "rounded = np.floor(np.asarray(values, np.float32) / by.scale)"),
    Defect(CODES, "np.broadcast_arrays(by.scale, by.zero_point - by.code.offset)", "np.broadcast_arrays(by.scale, by.zero_point)"),
    Defect(SCALES, "return values.reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))", "return values[::-1].reshape(*(1,) * axis, -1, *(1,) * (rank - axis - 1))"),
    Defect(CODES, "CodeType(f\"uint{bits}\", bits, 1 << (bits - 1))", "CodeType(f\"uint{bits}\", bits, (1 << (bits - 1)) - 1)"),
    Defect(VIEWS, "moved = np.moveaxis(padded, image.channel_axis, -1)", "moved = np.moveaxis(padded, image.channel_axis, -1)[..., ::-1]"),
    Defect(VIEWS, "_of_classes(t.offset, first)", "_of_classes(t.offset, first[::-1])"),
    Defect(VIEWS, "return classes.reshape(-1).astype(np.intp)", "return (classes * 0).reshape(-1).astype(np.intp)"),
    # Products and sums
    Defect(WEIGHTED, "constant = constant + x.offset * _sums_of_weights(ctx, sums, shape)", "constant = constant + 0 * _sums_of_weights(ctx, sums, shape)"),
    Defect(WEIGHTED, "inside = input_pixels(operator.window) >= 0", "inside = input_pixels(operator.window) >= -1"),
    Defect(WEIGHTED, "pixels = (patterns.astype(np.int64) @ by_tap)[which.reshape(-1)]", "pixels = (patterns.astype(np.int64) @ by_tap)[which.reshape(-1)[::-1]]"),
    Defect(WEIGHTED, "total = weights.values.sum(axis=summed, keepdims=True, dtype=np.int64)", "total = weights.values.sum(axis=summed, keepdims=True, dtype=np.int8)"),
    Defect(WEIGHTED, "factors = alike(node, ctx, [centred(node, ctx, t) for t in found])", "factors = alike(node, ctx, [t.tensor for t in found])"),
    Defect(STEPS, "found = np.rint(np.asarray(real / scale, np.float32))", "found = np.trunc(np.asarray(real / scale, np.float32))"),
    Defect(STEPS, 'return mapped(node, ctx, "add", wide_enough(node, ctx, term.tensor, needed), offset)', 'return mapped(node, ctx, "add", wide_enough(node, ctx, term.tensor, needed), offset - 1)'),
    Defect(SUMS, "offset=-term.offset)", "offset=term.offset)"),
    Defect(SUMS, "not view.takes_bias or ", ""),
    Defect(SUMS, "_smallest(term.offset * inside)", "_smallest(term.offset * counts)"),
    Defect(SUMS, "done = Term(ctx.tensors[name], term.scale, term.offset * count, mean)", "done = Term(ctx.tensors[name], term.scale, term.offset, mean)"),
    Defect(ON_CODES, "element = unit - term.offset.item()", "element = unit"),
    Defect(TABLES, "codes = np.arange(element.low, element.high + 1) + term.offset.item()", "codes = np.arange(element.low, element.high + 1)"),
    Defect(QLINEAR, "inputs = (_real(node, ctx, 0, axis=-2), _real(node, ctx, 3, axis=-1))", "inputs = (_real(node, ctx, 0, axis=-2), _real(node, ctx, 0, axis=-1))"),
    # Rounding
    Defect(RECIPES, "return (1 << shift) >> 1", "return (1 << shift) >> 2"),
    Defect(RECIPES, "replace(scaled, constant=_roundest(base + least, base + most))", "replace(scaled, constant=base + most + 1)"),
    Defect(RECIPES, "base = _base(given, plain.factors, plain.shift)\n    return _steady(given, replace(plain, constant=_roundest(base + least, base + most)))", "base = _base(given, plain.factors, plain.shift)\n    return _steady(given, replace(plain, constant=base + least - 1))"),
    Defect(RECIPES, "folded = folded + factor * _flat(offset)", "folded = folded - factor * _flat(offset)"),
    Defect(RECIPES, "return Recipe(given.operands, spread, ends, given.low, given.high)", "return Recipe(given.operands, spread, ends, given.low, given.high - 1)"),
    Defect(HORNER, "result = writer.number(\"add\", result, scaled.odd)", "result = writer.number(\"add\", result, 1 - scaled.odd)"),
    Defect(HORNER, "carry = None if carry is None else writer.step(\"sra\", carry, stage.shift)", "carry = None if carry is None else writer.step(\"sra\", carry, stage.shift - 1)"),
    Defect(HORNER, "factors = [(f - limb) >> width for f, limb in zip(factors, limbs, strict=True)]", "factors = [f >> width for f, limb in zip(factors, limbs, strict=True)]"),
    # Constants of tiles
    Defect(TILES, "row = constants[kind if classes > 1 else 0]", "row = constants[0]"),
    Defect(TILES, "row = row[:, slice(*region.channels)]", "row = row[:, : region.channel_count]"),
    Defect(TILES, "row = row[slice(*region.cols)]", "row = row[: region.cols[1] - region.cols[0]]"),
    Defect(TILES, "index[row, k] = order[content]", "index[row, k] = 0"),
    Defect(TILES, "classes = operator.row_class[slice(*region.rows)]\n        key = region.channels, region.cols, classes.tobytes()\n        if key not in known:\n            bits", "classes = operator.row_class[: region.row_count]\n        key = region.channels, region.cols, classes.tobytes()\n        if key not in known:\n            bits"),
    Defect(TILES, "table = operator.table[None, None]", "table = operator.table[None, None, ::-1]"),
    Defect(TILES, "Bound(result, operands[0], operator.low, operator.high)", "Bound(result, operands[0], operator.low, None)"),
    Defect(FOLD, "max(low, low if bound.low is None else bound.low)", "low"),
    # Widths and bytes
    Defect(OPERATIONS, "return integer(operand_widths(recipe, bits)[left]) if left < len(bits) else WORD", "return WORD"),
    Defect(OPERATIONS, "wanted[number] = max(wanted[number], _bits_of(step) if narrow else WORD.bits)", "wanted[number] = max(wanted[number], 16)"),
    Defect(WORDS, "return _Operand(_OUT, 0, row * self.row * bytes_of(self.result.bits))", "return _Operand(_OUT, 0, row * self.row)"),
    Defect(WORDS, "row * self.row * bytes_of(self.sources[number].bits)", "row * self.row"),
    Defect(WORDS, "self.bound(\"min\", recipe.high, (bits, result), shape.out(self.row), word)", "self.bound(\"min\", recipe.high, (bits, bits), shape.out(self.row), word)"),
    Defect(WORDS, "self.bound(\"max\", recipe.low, (bits, bits), word, value)", "self.bound(\"max\", recipe.low, (bits, result), word, value)"),
    Defect(WORDS, "element.low, (element.bits, self.shape.widths[n])", "element.low, (self.shape.widths[n], self.shape.widths[n])"),
    Defect(WORDS, "name, register = (\"vrsl\", _LOW) if op == \"max\" else (\"vrsu\", _HIGH)", "name, register = (\"vrsu\", _LOW) if op == \"max\" else (\"vrsl\", _HIGH)"),
    Defect(WORDS, "_Operand(_IN, 1), _Operand(_TABLES, 2))", "_Operand(_IN, 1), _Operand(_TABLES, 1))"),
    Defect(VIRTUAL, "return floats << 16 | input_bits << 8 | output_bits", "return floats << 16 | output_bits << 8 | input_bits"),
    Defect(VIRTUAL, "np.where(widths >> 16 > 0, _SETFP, _SETBW)", "_SETBW"),
    Defect(VIRTUAL, "needed[uses] = wanted != np.append(np.uint32(self.widths), wanted[:-1])", "needed[uses] = False"),
    Defect(SKELETONS, "np.where(whole, elements, count) * size", "np.where(whole, elements, count)"),
    Defect(EMIT, "pixel_bytes = channels * self.size(out)", "pixel_bytes = channels"),
    Defect(ELEMENT, "wide[:, : bytes_of(element.bits)]", "wide[:, : bytes_of(element.bits)][:, ::-1]"),
    Defect(ELEMENT, "return -(-bits // 8)", "return 1"),
    Defect(MEMORY, "_padded(to_bytes(constant.values, constant.element))", "_padded(to_bytes(constant.values, constant.element))[::-1]"),
    Defect(CONTENTS, "offset=given.offset,", "offset=0,"),
)  # fmt: skip
