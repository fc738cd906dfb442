"""Table of defects of the meaning of integers; `test_machine_defects` plants each in one of the engines.

A text that does not occur exactly once is an error, so that the table keeps step with the code.
"""
# ruff: noqa: E501 one defect a line

from tests.fuzz.defects import Defect

MEANINGS = "validator/integer_meanings.py"

DEFECTS: tuple[Defect, ...] = (
    # Elements in memory
    Defect(MEANINGS, 'bytes_of(bits), element), "little", signed=True)', 'bytes_of(bits), element), "little")'),
    Defect(MEANINGS, 'bytes_of(bits), element), "little", signed=True)', 'bytes_of(bits), element), "big", signed=True)'),
    Defect(MEANINGS, '.to_bytes(size, "little", signed=True)', '.to_bytes(size, "big", signed=True)'),
    Defect(MEANINGS, "return -(-bits // 8)", "return max(1, bits // 8)"),
    Defect(MEANINGS, "    core.written[address : address + size] = 1\n\n\ndef _fitting", "\n\ndef _fitting"),
    Defect(MEANINGS, "if not core.written[part].all():", "if not core.written[part].any():"),
    Defect(MEANINGS, "-(1 << bits - 1) <= value < 1 << bits - 1:", "-(1 << bits - 1) < value < 1 << bits - 1:"),
    Defect(MEANINGS, "-(1 << bits - 1) <= value < 1 << bits - 1:", "-(1 << bits - 1) <= value <= 1 << bits - 1:"),
    Defect(MEANINGS, "_fitting(core, value, bits, element).to_bytes", "((value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)).to_bytes"),
    # Widths
    Defect(MEANINGS, "= i.b, i.c, 0", "= i.c, i.b, 0"),
    Defect(MEANINGS, "= i.b, i.c, 0", "= core.machine.widths[core.number].max() or i.b, i.c, 0"),
    Defect(MEANINGS, "width = bits if access.width is Width.INPUT else target_bits", "width = target_bits"),
    Defect(MEANINGS, "width = bits if access.width is Width.INPUT else target_bits", "width = bits"),
    # Places
    Defect(MEANINGS, "(i.c * size if i.b >> bit & 1 else 0)", "(i.c if i.b >> bit & 1 else 0)"),
    Defect(MEANINGS, "moved = i.c * bytes_of(width) if", "moved = i.c * bytes_of(bits) if"),
    Defect(MEANINGS, "in_place=in_place and bytes_of(width) <= bytes_of(bits)", "in_place=in_place"),
    Defect(MEANINGS, "of = v.target.start + k * size, v.sources[0].start + k * v.step * size", "of = v.target.start + k * size, v.sources[0].start + k * size"),
    # Functions
    Defect(MEANINGS, "return x >> amount", "return int(x / (1 << amount))"),
    Defect(MEANINGS, "return x << amount", "return x << (amount & 15)"),
    Defect(MEANINGS, "if not 0 <= amount <= MAX_SHIFT:", "if not 0 <= amount <= 2 * MAX_SHIFT:"),
    Defect(MEANINGS, "return max(x, 0)", "return abs(x)"),
    Defect(MEANINGS, "entry = v.read(0, k) + (1 << v.bits - 1)", "entry = v.read(0, k) % (1 << v.bits)"),
    Defect(MEANINGS, "entry * bytes_of(v.target_bits)", "entry * bytes_of(v.bits)"),
    Defect(MEANINGS, "quotient + (twice_rest > 1 << shift or (twice_rest == 1 << shift and quotient & 1 == 1))", "quotient + (twice_rest >= 1 << shift)"),
    Defect(MEANINGS, "quotient + (twice_rest > 1 << shift or (twice_rest == 1 << shift and quotient & 1 == 1))", "quotient"),
    Defect(MEANINGS, "divide_to_even((x + bias) * m, s)", "divide_to_even(x * m + bias, s)"),
    Defect(MEANINGS, "min(max(divide_to_even((x + bias) * m, s) + z, low), high)", "min(max(divide_to_even((x + bias) * m, s), low), high) + z"),
    Defect(MEANINGS, "v.sources[1].start + k * PARAMETERS.itemsize, PARAMETERS.itemsize", "v.sources[1].start, PARAMETERS.itemsize"),
    Defect(MEANINGS, "max(total, 0) if i.b else total", "total"),
    Defect(MEANINGS, "sum(a * w for a, w in zip(x, column, strict=True))", "sum(a * w for a, w in zip(x, column, strict=True)) % 2**24"),
    Defect(MEANINGS, "sum(v.read(0, k) * v.read(1, k) for k in range(i.d))", "sum(v.read(0, k) * v.read(1, k) for k in range(i.d - 1))"),
    # Floats
    Defect(MEANINGS, "v.write(k, round(min(max(value, float(low)), float(high))))", "v.write(k, int(min(max(value, float(low)), float(high))))"),
    Defect(MEANINGS, "v.write(k, round(min(max(value, float(low)), float(high))))", "v.write(k, round(value) if abs(value) < 1e9 else 0)"),
    Defect(MEANINGS, "np.where(np.isnan(values), np.float32(np.nan), values)", "np.where(np.isnan(values), np.float32(0), values)"),
    Defect(MEANINGS, "b\"\".join(read_bytes(core, start + 4 * step * k, 4, k)", "b\"\".join(read_bytes(core, start + 4 * k, 4, k)"),
)  # fmt: skip
