"""Table of planted defects: a text of a source file, and the wrong text that replaces it.

A text that does not occur exactly once is an error, so that the table keeps step with the code.
"""
# ruff: noqa: E501 one defect a line

from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.campaign import BrokenError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    """A change of a source file: `old` occurs there exactly once and becomes `new`."""

    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """Returns the changed text of the file. Raises `BrokenError` if `old` does not occur exactly once."""
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise BrokenError(f"{self.file}: {self.old!r} occurs {text.count(self.old)} times; mend this table")
        return text.replace(self.old, self.new)


EMIT, VIRTUAL = "raptor/codegen/emit.py", "raptor/codegen/registers.py"
PLACE, ALLOCATE, MEMORY = (f"raptor/pim/{n}.py" for n in ("lowering", "allocate", "global_memory"))
LOWER, LINES, APPLY = (f"raptor/spatial/{n}.py" for n in ("lower_tiles", "lower_lines", "line_filter"))
GRID = "raptor/spatial/line_grid.py"
CASCADE, DENSE, POOLS = (f"raptor/spatial/{n}.py" for n in ("tile_filter", "fully_connected", "line_pools"))
PLACES, SCHEDULE, CONTENTS = (
    "raptor/spatial/mesh_placement.py",
    "raptor/spatial/schedule.py",
    "raptor/output/contents.py",
)
OPERATIONS = "raptor/spatial/operations.py"
WINDOW, LAYOUT = "raptor/graph/window.py", "raptor/target/layout.py"
UNFOLD, MAPPING, PARTS = (f"raptor/mapping/{n}.py" for n in ("line_unfolding", "kernel_unfolding", "streaming"))
PLANS, FOLD, DEPTHWISE = (f"raptor/mapping/{n}.py" for n in ("plans", "fold_relu", "depthwise"))

DEFECTS: tuple[Defect, ...] = (
    # Instructions
    Defect(EMIT, "out_address = self.at(op.result) + pixel * op.result.channels", "out_address = self.at(op.result) + pixel * op.input.channels"),
    Defect(EMIT, "first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]\n        # A product", "first = np.append(True, pixel[1:] == pixel[:-1])[: len(pixel)]\n        # A product"),
    Defect(EMIT, '(inputs[pixel, index] * op.input.channels + op.channel)', '(inputs[pixel, index] * op.input.channels)'),
    Defect(EMIT, 'block["c"][product] = np.array(op.weights)[index]', 'block["c"][product] = np.array(op.weights)[index - 1]'),
    Defect(EMIT, 'block["b"][product] = op.relu', 'block["b"][product] = 0'),
    Defect(EMIT, "return np.concatenate([self._zeros(op.result, untouched, op.result.channels), block])", "return block"),
    Defect(EMIT, 'block["d"][add] = op.result.channels', 'block["d"][add] = op.result.channels - 1'),
    Defect(EMIT, 'block["d"] = lengths * channels * self.element_bytes', 'block["d"] = channels * self.element_bytes'),
    Defect(EMIT, "address[owner] + step * advances[owner]", "address[owner] + step"),
    Defect(EMIT, "np.where(starts == 0, self.at(op.source), self.at(op.result))", "self.at(op.source) + starts"),
    Defect(EMIT, "[op.row * op.result.width :][: op.result", "[: op.result"),
    Defect(EMIT, "used = tap_numbers[:, None] < counts", "used = tap_numbers[:, None] < counts - 1"),
    Defect(EMIT, 'block["d"] = lengths * op.result.channels * np', 'block["d"] = op.result.channels * np'),
    Defect(EMIT, 'side="right") - 1', 'side="left")'),
    Defect(EMIT, "pixel * result.channels + piece.target", "pixel * result.channels"),
    Defect(EMIT, "pixel * piece.value.channels + piece.source", "pixel * result.channels + piece.source"),
    Defect(EMIT, "used = (inputs >= 0) & (index != ZERO_WEIGHT)", "used = index != ZERO_WEIGHT"),
    Defect(EMIT, "(batch * op.cols + op.first + col)", "(batch * op.cols + col)"),
    Defect(EMIT, "(batch * rows + row) * pixel_bytes", "row * pixel_bytes"),
    Defect(EMIT, 'block["value"][strided, 2] = stride[strided]', 'block["value"][strided, 2] = 1'),
    Defect(EMIT, 'block["opcode"][zeros] = isa.OPCODE["lldi"]', 'block["opcode"][zeros] = isa.OPCODE["nop"]'),
    Defect(EMIT, "(np.where(first, OUT, SCRATCH)[weighted], np.where(first, out, accum)[weighted])", "(np.full(len(weighted), OUT), out[weighted])"),
    Defect(EMIT, "counts, line) + source * self.element_bytes", "counts, line * 0) + source * self.element_bytes"),
    Defect(EMIT, "out + target * self.element_bytes)\n        set_operand(block, 1, IN, self._bases([op.lines", "out + target)\n        set_operand(block, 1, IN, self._bases([op.lines"),
    Defect(EMIT, '"a"], block["c"] = self.element_bits, group', '"a"], block["c"] = self.element_bits, group[0]'),
    Defect(EMIT, "counts, left) + left_at * self.element_bytes", "counts, left) + right_at * self.element_bytes"),
    Defect(EMIT, "counts, right) + right_at", "counts, left) + right_at"),
    Defect(EMIT, "np.where(more, out, self._bases", "np.where(more, 0, self._bases"),
    Defect(EMIT, '("lldi", "lmv", "vvadd", "vvadd")', '("lldi", "lmv", "lmv", "vvadd")'),
    Defect(EMIT, "np.where(kind <= COPY, elements * self.element_bytes, elements)", "np.where(kind < COPY, elements * self.element_bytes, elements)"),
    Defect(EMIT, "zip(met[2:], operands[2:], strict=True)", "zip(met[3:], operands[3:], strict=True)"),
    Defect(EMIT, "int(table[r, 2] + a - table[r, 0])", "int(table[r, 2])"),
    Defect(EMIT, "(table[:, 0] <= a) & (ends >= b)", "(table[:, 0] <= a) & (ends > b)"),
    Defect(EMIT, "first, elements = ir.span_of(buffer, span)", "first, elements = 0, ir.span_of(buffer, span)[1]"),
    Defect(EMIT, "self._bytes_of(op.result, op.span) for op in ops", "self._bytes_of(op.result, None) for op in ops"),
    Defect(EMIT, 'block["c"], block["d"] = self._bytes_of(op.result, op.span)', 'block["c"], block["d"] = self._bytes_of(op.result, None)'),
    Defect(EMIT, "np.repeat(firsts, counts) + np.maximum(index, 0)", "np.maximum(index, 0)"),
    Defect(EMIT, 'np.argsort(np.concatenate(owners), kind="stable")', "np.arange(sum(map(len, owners)))"),
    # Registers
    Defect(VIRTUAL, "needed[uses[1:]] = held[1:] != held[:-1]", "needed[uses[1:]] = held[1:] > held[:-1]"),
    # Memory
    Defect(ALLOCATE, "life.buffer.elements + GAP_ELEMENTS", "life.buffer.elements // 2 + GAP_ELEMENTS"),
    Defect(ALLOCATE, "first = np.array([life.first for life in lives]", "first = np.array([life.first + 1 for life in lives]"),
    Defect(ALLOCATE, "dying = (b for b in op.operands if last[b.name] == i and", "dying = (b for b in op.operands if"),
    Defect(ALLOCATE, "last = np.array([life.last for life in lives]", "last = np.array([life.first for life in lives]"),
    Defect(MEMORY, "self.known[key] = self.base + self.size\n", "self.known[key] = self.base + self.size + 1\n"),
    Defect(MEMORY, "position + pool.size)", "position)"),
    Defect(MEMORY, "starts = np.cumsum([position, *sizes])", "starts = np.cumsum([position, *sizes[::-1]])"),
    # Cores and messages
    Defect(PLACE, "ir.Receive(buffer, source, self.channels)", "ir.Receive(buffer, source, self.channels + 1)"),
    Defect(PLACE, "ir.Send(self.cores[source].here[tile.name], core, self.channels)", "ir.Send(next(iter(self.cores[source].here.values())), core, self.channels)"),
    Defect(PLACE, "self.first_group[key] = len(groups)", "self.first_group[key] = max(0, len(groups) - 1)"),
    Defect(OPERATIONS, "weights=tuple(first + i for i in self.weights)", "weights=tuple(i for i in self.weights)"),
    Defect(EMIT, "np.indices((op.batch, rows, op.result.channels))", "np.indices((op.batch, rows, op.result.channels - 1))"),
    Defect(PLACE, "(op.at, op.elements), (op.first, op.elements)", "(op.first, op.elements), (op.at, op.elements)"),
    Defect(PLACE, "np.array([[op.at, 0, op.first, 1, op.elements]])", "np.array([[op.first, 0, op.at, 1, op.elements]])"),
    Defect(PLACE, "self.inputs[op.source.name] + op.first, into", "self.inputs[op.source.name], into"),
    # Tiles
    Defect(LOWER, "values = values[slice(*region.rows)]", "values = values[: region.row_count]"),
    Defect(LOWER, "Piece(part.tile, first - low, first - start, last - first)", "Piece(part.tile, 0, first - start, last - first)"),
    Defect(LOWER, "base += self.graph.tensors[name].image.channels", "base += 0"),
    Defect(LOWER, "pixel[chosen] * part.tile.channels + channel[chosen] - low", "pixel[chosen] * part.tile.channels + channel[chosen]"),
    Defect(LOWER, "last = channels is shared[-1][1]", "last = channels is shared[0][1]"),
    Defect(LOWER, "operator.pixels[:, :, slice(*region.channels)]", "operator.pixels[:, :, : region.channel_count]"),
    Defect(LOWER, "weights = operator.weights[:, :, slice(*region.channels)] if channels > 1", "weights = operator.weights[:, :, : region.channel_count] if channels > 1"),
    Defect(CASCADE, 'body.append(Vector(total, "add", (before, product)))', 'body.append(Vector(total, "add", (product, product)))'),
    Defect(CASCADE, "channel = rows[0] - source.region.channels[0]", "channel = 0"),
    Defect(MAPPING, "cols = (col, min(col + tile, outs))", "cols = (col, min(col + tile, outs - 1))"),
    Defect(MAPPING, "row, min(row + xbar_rows, stop)) for row in range(start, stop, xbar_rows))", "row, min(row + xbar_rows, stop)) for row in range(start, stop - 1, xbar_rows))"),
    Defect(MAPPING, "core, free = core + 1, arch.xbars_per_core\n        free", "core, free = core + 1, arch.xbars_per_core + 1\n        free"),
    # Lines
    Defect(UNFOLD, "- shift - outs * window.strides[axis]", "- shift - outs"),
    Defect(UNFOLD, "np.divmod(offset, window.dilations[axis])", "np.divmod(offset, 1)"),
    Defect(UNFOLD, "(rest == 0) & (tap >= 0)", "(tap >= 0)"),
    Defect(UNFOLD, "tap = row[:, :, None, None] * window.kernel[1] + col", "tap = row[:, :, None, None] * window.kernel[0] + col"),
    Defect(UNFOLD, "chosen.transpose(0, 2, 4, 1, 3, 5)", "chosen.transpose(0, 2, 4, 3, 1, 5)"),
    Defect(UNFOLD, "first = outs[0] * window.strides[1] - window.pads[1]", "first = outs[0] * window.strides[1] - window.pads[1] + 1"),
    Defect(UNFOLD, "last = (outs[1] - 1) * window.strides[1] - window.pads[1] + reach", "last = (outs[1] - 1) * window.strides[1] - window.pads[1]"),
    Defect(UNFOLD, "low = -((reach - pixels[0] - window.pads[1]) // stride)", "low = -((reach - pixels[0] - window.pads[1]) // stride) + 1"),
    Defect(UNFOLD, "(pixels[1] - 1 + window.pads[1]) // stride + 1)", "(pixels[1] - 1 + window.pads[1]) // stride)"),
    Defect(UNFOLD, "for at in range(low, high, pixels)]", "for at in range(low, high - 1, pixels)]"),
    Defect(UNFOLD, "own = (first, min(first + outputs, outs[1]))", "own = (first, min(first + outputs, outs[1] - 1))"),
    Defect(UNFOLD, "shift = block.outs[0] * window.strides[1] - window.pads[1] - block.pixels[0]", "shift = block.outs[0] * window.strides[1] - window.pads[1] - block.pixels[0] + 1"),
    Defect(UNFOLD, "range(0, window.in_dims[0], height)", "range(height, window.in_dims[0], height)"),
    Defect(UNFOLD, "divmod(y + pad - k * dilation, stride)", "divmod(y - k * dilation, stride)"),
    Defect(UNFOLD, "shift = first * window.strides[0] - window.pads[0] - band.lines[0]", "shift = first * window.strides[0] - band.lines[0]"),
    Defect(UNFOLD, "tuple(out - first for out in band.outs)", "tuple(range(len(band.outs)))"),
    Defect(APPLY, "yield y, p, cols, tiles[0] if groups == 1 else", "yield y, p, cols, tiles[0] if groups >= 1 else"),
    Defect(APPLY, "for i in range(len(tiles))])", "for i in range(len(tiles) - 1)])"),
    Defect(APPLY, "[0, i, 0, result.elements]", "[0, 0, 0, result.elements]"),
    Defect(APPLY, "reaching.setdefault(out, []).append((i, shape, tiles))", "reaching.setdefault(out, []).append((0, shape, tiles))"),
    Defect(APPLY, "_Product(weight, index, block, step, sizes[step])", "_Product(weight, index, block, step, 0)"),
    Defect(APPLY, "len(shape.outs) * (block.outs[1] - block.outs[0]) * width\n", "(block.outs[1] - block.outs[0]) * width\n"),
    Defect(APPLY, "weight = self.matrices.setdefault(copy, len(self.matrices))", "weight = self.matrices.setdefault(copy, 0)"),
    Defect(APPLY, "(q.block.pixels[0] - lines[q.part][2]) *", "q.block.pixels[0] *"),
    Defect(APPLY, "(q.weight, lines[q.part][0], ", "(q.weight, 0, "),
    Defect(APPLY, "return own[0][0], own[-1][1]", "return own[0][0], own[0][1]"),
    Defect(APPLY, "(i * count + a - q.block.outs[0]) * width", "(a - q.block.outs[0]) * width"),
    Defect(APPLY, "+ a - q.block.outs[0]) * width + low - self.outs[0]", "+ a) * width + low - self.outs[0]"),
    Defect(APPLY, "* width + low - self.outs[0]", "* width"),
    Defect(APPLY, "source = first_source + q.step", "source = first_source"),
    Defect(APPLY, "at + (x - a) * width, own", "at + (x - a) * own, own"),
    Defect(APPLY, "found.append(((a - self.cols[0]) * own", "found.append((a * own"),
    Defect(APPLY, "first_source += len(work.sizes)", "first_source += 0"),
    Defect(APPLY, "for band, shape in found:", "for band, shape in [*found, found[0]]:"),
    Defect(APPLY, "self.cols, pixels, chosen.outputs):", "self.cols, pixels, chosen.outputs)[1:]:"),
    Defect(LINES, "for cell in grid.lines[y][p]:\n                low", "for cell in grid.lines[lines[0]][p]:\n                low"),
    Defect(LINES, "cols[0] * channels, 0, width * channels", "0, 0, width * channels"),
    Defect(GRID, "at = y * width + cell.cols[0]", "at = y * width"),
    Defect(GRID, "target = (at + pixel) * wide + low - channels[0]", "target = (at + pixel) * wide"),
    Defect(GRID, "source, y * width * wide, 1, width * wide", "source, 0, 1, width * wide"),
    Defect(GRID, "first = (y * width + pixel) * wide + low - channels[0]", "first = (y * width + pixel) * wide"),
    Defect(GRID, "pixel * own + low - part[0], source", "pixel * own, source"),
    Defect(LINES, "low - cell.cols[0], (y - lines[0]) * width + low - cols[0])", "low - cell.cols[0], (y - lines[0]) * width)"),
    Defect(LINES, "first, at = (low - cell.cols[0], (y", "first, at = (0, (y"),
    Defect(LINES, "(y - lines[0]) * width + low", "low"),
    Defect(GRID, "self.cols == cols if exact else", "self.cols[0] == cols[0] if exact else"),
    Defect(LINES, "Region(parts[p], (y, y + 1), cell.cols))", "Region(parts[p], (y, y + 1)))"),
    Defect(LINES, "return self.line_on(node, grid, y, p, cell.cols, core", "return self.line_on(node, grid, y, 0, cell.cols, core"),
    Defect(LINES, "if w.region.channels == part), None)", "if w.region.channels == part), whole[0].tile)"),
    Defect(LINES, "above = (y * window.strides[0] - window.pads[0] +", "above = (y * window.strides[0] +"),
    Defect(LINES, "k * window.dilations[0] for k in range(window.kernel[0]))\n        lines = [i for i in above if 0 <= i < len(grid.lines)]", "k * window.dilations[0] for k in range(window.kernel[0]))\n        lines = [i for i in above if 0 <= i < len(grid.lines) - 1]"),
    Defect(LINES, "pads=(window.pads[0], pixels[0] - cols[0] * window.strides[1] + window.pads[1])", "pads=(window.pads[0], window.pads[1])"),
    Defect(LINES, "pads=(lines[0] - first, pixels[0]", "pads=(window.pads[0], pixels[0]"),
    Defect(LINES, "return max(0, first), min(last, window.in_dims[0])", "return max(0, first), min(last - 1, window.in_dims[0])"),
    Defect(LINES, "replace(known[local], result=tile, input=given),), y", "replace(known[local], result=tile),), y"),
    Defect(LINES, "cells for grid in grids for cells", "cells for grid in grids[::-1] for cells"),
    Defect(LINES, "first = max(first, last)", "first = max(first, last + 1)"),
    Defect(PARTS, "(base + a, base + b) for base", "(a, b) for base"),
    # Shapes
    Defect(WINDOW, "at = output * stride - pad + tap * dilation", "at = output * stride - pad + tap"),
    Defect(WINDOW, "(at >= 0) & (at < self.in_dims[d])", "(at >= 0) & (at < self.in_dims[d] - 1)"),
    Defect(WINDOW, "np.where((a >= 0) & (b >= 0), a * size + b, -1)", "np.where((a >= 0) & (b >= 0), a * size + b, 0)"),
    Defect(FOLD, "uses[source.output] == 1 and _single_product", "_single_product"),
    Defect(FOLD, "return taps == 1 and", "return"),
    Defect(DEPTHWISE, "operator.weights.swapaxes(0, 1)", "operator.weights.swapaxes(0, 1)[:, ::-1]"),
    # Files
    Defect(CONTENTS, "cols=p.region.cols, address=at * element_bytes", "cols=p.region.cols, address=at"),
    Defect(CONTENTS, "tuple(g.matrix.xbars for g in core.groups) for i, core", "tuple(1 for g in core.groups) for i, core"),
    Defect(CONTENTS, "pc=int(streams.cores[spot.core].step_ends[spot.step])", "pc=int(streams.cores[spot.core].step_ends[spot.step - 1])"),
    # One pixel, pools, shared cores, places
    Defect(DENSE, "ends[i], i * width) for i", "ends[0], i * width) for i"),
    Defect(DENSE, "source.first + size - elements, start, elements)", "source.first, start, elements)"),
    Defect(DENSE, "(after.tile, after.first) != (source.tile, source.first + size)", "after.tile != source.tile"),
    Defect(DENSE, "for at in range(*run)]", "for at in range(*run)][1:]"),
    Defect(DENSE, "[n * width, 0, at * width, width]", "[n * width, 0, n * width, width]"),
    Defect(DENSE, "if partial.first < end <= last", "if partial.first < end < last"),
    Defect(DENSE, "first += len(matrices)", "first += 1"),
    Defect(DENSE, "Copy(met, partial.tile, given, copied, size)", "Copy(met, partial.tile, 0, copied, size)"),
    Defect(DENSE, "runs.append((0, 1, copied, size))", "runs.append((0, 1, 0, size))"),
    Defect(DENSE, "at + n * partial.width for n", "at for n"),
    Defect(APPLY, "return set(self.chosen.grid.outs) <= set(self.outs)", "return True"),
    Defect(POOLS, "strides=(window.strides[0], 1)", "strides=(1, 1)"),
    Defect(POOLS, "pads=(0, window.pads[1])", "pads=(0, 0)"),
    Defect(POOLS, "inputs=((pool.row, column),)", "inputs=((0, column),)"),
    Defect(POOLS, "for n, tile in enumerate(tiles[1:], 1)", "for n, tile in enumerate(tiles[2:], 2)"),
    Defect(PLANS, "plan.xbars <= self.xbars and", ""),
    Defect(PLACES, "tuple(places[core] for core in cores)", "tuple(places[core] // 2 for core in cores)"),
    Defect(PLACES, "tuple(places[core] for core in cores)", "tuple(places[core] for core in cores[::-1])"),
    Defect(SCHEDULE, "need |= set(made)", "need |= set(made[:1])"),
    Defect(SCHEDULE, "set(self.makers[fetch.tile.name]) for fetch", "set[int]() for fetch"),
)  # fmt: skip
