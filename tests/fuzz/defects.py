"""The table of planted defects, `defects.toml`.

Its sections say what must see a defect: `floats`, `integers` and `rounds` the validator and the checks, on the cases of
`tests.fuzz.planted`; `engine` the comparison of the two engines in `tests/validator/test_machine_defects.py`; a file of
tests one test of it, because the values stay right. A function is named by so much of the end of its qualified name
(`package.module.Class.method`) that RAPTOR has only one. How a rewrite is written: `tests.fuzz.rewriting`.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

EMIT, VIRTUAL, SKELETONS = (f"raptor/codegen/{n}.py" for n in ("emit", "registers", "skeletons"))
STEPS, NEEDS = "raptor/pim/steps.py", "raptor/spatial/needs.py"
PLACE, ALLOCATE, MEMORY = (f"raptor/pim/{n}.py" for n in ("lowering", "allocate", "global_memory"))
WANTS, DEMAND = "raptor/pim/wants.py", "raptor/pim/demand.py"
LOWER, TILE_OPS, LINES, STREAMED, APPLY = (
    f"raptor/spatial/{n}.py" for n in ("lower_tiles", "tile_ops", "lower_lines", "streamed_lines", "line_filter")
)
TOKENS, AXES = "raptor/spatial/lower_tokens.py", "raptor/frontend/axes.py"
WINDOWS, SIGNALS = "raptor/spatial/line_windows.py", "raptor/transforms/lift_to_2d.py"
GRID, MOVES, VIEWS = (
    "raptor/spatial/line_grid.py",
    "raptor/spatial/line_moves.py",
    "raptor/transforms/compose_gathers.py",
)
CASCADE, DENSE, POOLS = (f"raptor/spatial/{n}.py" for n in ("tile_filter", "fully_connected", "line_pools"))
PLACES, CONTENTS = (
    "raptor/spatial/mesh_placement.py",
    "raptor/output/contents.py",
)
OPERATIONS = "raptor/spatial/operations.py"
WINDOW, LAYOUT = "raptor/graph/window.py", "raptor/target/layout.py"
UNFOLD, MAPPING, PARTS = (f"raptor/mapping/{n}.py" for n in ("line_unfolding", "kernel_unfolding", "streaming"))
AXIS = "raptor/mapping/window_axis.py"
PLANS, PACKING = (f"raptor/mapping/{n}.py" for n in ("plans", "packing"))
FOLD, VECTOR_UNIT = (f"raptor/transforms/{n}.py" for n in ("fold_relu", "use_vector_unit"))

_OF_PROGRAMS: tuple[Defect, ...] = (
    # Instructions
    Defect(EMIT, "out_address = self.at(op.result) + pixel * op.result.channels", "out_address = self.at(op.result) + pixel * op.input.channels"),
    Defect(EMIT, "first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]\n        # A product", "first = np.append(True, pixel[1:] == pixel[:-1])[: len(pixel)]\n        # A product"),
    Defect(EMIT, '(inputs[pixel, index] * op.input.channels + op.channel)', '(inputs[pixel, index] * op.input.channels)'),
    Defect(EMIT, 'block["c"][product] = np.array(op.weights)[index]', 'block["c"][product] = np.array(op.weights)[index - 1]'),
    Defect(EMIT, 'block["b"][product] = op.relu', 'block["b"][product] = 0'),
    Defect(EMIT, "return np.concatenate([self._zeros(op.result, untouched, op.result.channels), block])", "return block"),
    Defect(EMIT, 'block["d"][add] = op.result.channels', 'block["d"][add] = op.result.channels - 1'),
    Defect(EMIT, 'block["d"] = lengths * pixel_bytes', 'block["d"] = pixel_bytes'),
    Defect(EMIT, "self.at(buffer) + np.arange(len(block)) * advance", "self.at(buffer) + np.arange(len(block))"),
    Defect(EMIT, "np.where(start == 0, self.at(op.source) + row * piece * size, first)", "self.at(op.source) + row * piece * size + start"),
    Defect(EMIT, "self.at(op.source) + row * piece * size, first)", "self.at(op.source), first)"),
    Defect(EMIT, "read // given.width]), op.together)", "read // given.width]), 2 * op.together)"),
    Defect(EMIT, "[op.row * op.result.width :][: op.result", "[: op.result"),
    Defect("raptor/codegen/emit_pool.py", "counts == first + 1, counts > tap)", "counts == first + 1, counts > tap + 1)"),
    Defect("raptor/codegen/emit_pool.py", "reads, first, tap, total, part = steps[step].T", "reads, first, tap, part, total = steps[step].T"),
    Defect("raptor/codegen/emit_pool.py", "yield TOTAL, first, first, top - above, top - k", "yield TOTAL, first, first, top - above, top - above"),
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
    Defect(EMIT, "self._bases(op.lines, line) + source", "self._bases(op.lines, line * 0) + source"),
    Defect(EMIT, "self.at(op.result) + target * self.size(op.result)", "self.at(op.result) + target"),
    Defect(EMIT, 'block["a"], block["c"] = self.weight_bits, group\n', 'block["a"], block["c"] = self.weight_bits, group[0]\n'),
    Defect(EMIT, "self._bases(op.sources, left) + left_at * size", "self._bases(op.sources, left) + right_at * size"),
    Defect(EMIT, "self._bases(op.sources, right) + right_at", "self._bases(op.sources, left) + right_at"),
    Defect(EMIT, "np.where(more, out, self._bases", "np.where(more, 0, self._bases"),
    Defect(EMIT, '("lldi", "lmv", "vvadd", "vvadd")', '("lldi", "lmv", "lmv", "vvadd")'),
    Defect(EMIT, "np.where(kind <= COPY, elements * size, elements)", "np.where(kind < COPY, elements * size, elements)"),
    Defect(EMIT, "zip(met[2:], operands[2:], strict=True)", "zip(met[3:], operands[3:], strict=True)"),
    Defect(EMIT, "int(table[r, 2] + a - table[r, 0])", "int(table[r, 2])"),
    Defect(EMIT, "(table[:, 0] <= a) & (ends >= b)", "(table[:, 0] <= a) & (ends > b)"),
    Defect(SKELETONS, "np.where(whole, 0, first) * size", "np.where(whole, 0, 0) * size"),
    Defect(SKELETONS, "np.where(whole, elements, count) * size", "elements * size"),
    Defect(SKELETONS, 'block["c"][at] += skipped', 'block["c"][at] += 0'),
    Defect(SKELETONS, "steps.start[step][:, None] + slot", "steps.start[step][:, None] + np.minimum(slot, 0)"),
    Defect(SKELETONS, "np.where(self.product[index], steps.number[step], 0)", "np.where(self.product[index], 0, 0)"),
    # Registers
    Defect(VIRTUAL, "needed[uses[1:]] = held[1:] != held[:-1]", "needed[uses[1:]] = held[1:] > held[:-1]"),
    # Memory
    Defect(STEPS, "return count * bytes_of_types(kind, arch)", "return count * bytes_of_types(kind, arch) // 2"),
    Defect(ALLOCATE, "lives.first, lives.last, size)", "lives.first + 1, lives.last, size)"),
    Defect(ALLOCATE, "(last[uses.buffer] == uses.step) & alike", "alike"),
    Defect(ALLOCATE, "lives.first, lives.last, size)", "lives.first, lives.first, size)"),
    Defect(MEMORY, "self.known[key] = self.base + self.size\n", "self.known[key] = self.base + self.size + 1\n"),
    Defect(MEMORY, "graph.outputs, position + pool.size, arch)", "graph.outputs, position, arch)"),
    Defect(MEMORY, "starts = np.cumsum([position, *sizes])", "starts = np.cumsum([position, *sizes[::-1]])"),
    # Cores and messages
    Defect(PLACE, "m.buffer, number=numbers, peer", "m.buffer, number=numbers + 1, peer"),
    Defect(PLACE, "SEND, m.node, m.given", "SEND, m.node, m.given * 0"),
    Defect(PLACE, "channel = np.argsort(np.argsort(np.concatenate([filled.at, copied.at])))", "channel = np.argsort(np.concatenate([filled.at, copied.at]))"),
    Defect(PLACE, "begins[core, wanted[0]] = len(groups[core])", "begins[core, wanted[0]] = max(0, len(groups[core]) - 1)"),
    Defect(WANTS, "new[first] = True", "new[first[:-1]] = True"),
    Defect(DEMAND, "place, fill=fill, base=values)", "place, fill=fill, base=values[:1])"),
    Defect(EMIT, "np.indices((op.batch, rows, op.result.channels))", "np.indices((op.batch, rows, op.result.channels - 1))"),
    Defect(PLACE, "first, into, elements, each_bytes = ", "into, first, elements, each_bytes = "),
    Defect(PLACE, "np.array([[op.at, 0, op.first, 1, op.elements]])", "np.array([[op.first, 0, op.at, 1, op.elements]])"),
    Defect(PLACE, "number = address[c] + first[c] * each_bytes[c]", "number = address[c]"),
    # Tiles
    Defect(TILE_OPS, "values = values[slice(*region.rows)]", "values = values[: region.row_count]"),
    Defect(LOWER, "Piece(part.tile, first - low, first - start, last - first)", "Piece(part.tile, 0, first - start, last - first)"),
    Defect(LOWER, "base += self.graph.tensors[name].image.channels", "base += 0"),
    Defect(LOWER, "pixel[chosen] * part.tile.channels + channel[chosen] - low", "pixel[chosen] * part.tile.channels + channel[chosen]"),
    Defect(LOWER, "last = channels is shared[-1][1]", "last = channels is shared[0][1]"),
    Defect(LOWER, "operator.pixels[:, :, slice(*region.channels)]", "operator.pixels[:, :, : region.channel_count]"),
    Defect(TILE_OPS, "weights = operator.weights[:, :, slice(*region.channels)] if channels > 1", "weights = operator.weights[:, :, : region.channel_count] if channels > 1"),
    Defect(CASCADE, 'body.append(Vector(total, "add", (before, product)))', 'body.append(Vector(total, "add", (product, product)))'),
    Defect(CASCADE, "channel = rows[0] - source.region.channels[0]", "channel = 0"),
    Defect(MAPPING, "cols = (col, min(col + tile, outs))", "cols = (col, min(col + tile, outs - 1))"),
    Defect(MAPPING, "row, min(row + xbar_rows, stop)) for row in range(start, stop, xbar_rows))", "row, min(row + xbar_rows, stop)) for row in range(start, stop - 1, xbar_rows))"),
    Defect(MAPPING, "core, free = core + 1, arch.xbars_per_core\n        free", "core, free = core + 1, arch.xbars_per_core + 1\n        free"),
    # Lines
    Defect(UNFOLD, "- shift - outs * axis.stride", "- shift - outs"),
    Defect(UNFOLD, "np.arange(inputs)[:, None] * axis.spread", "np.arange(inputs)[:, None]"),
    Defect(AXIS, "np.divmod(distance, self.dilation)", "np.divmod(distance, 1)"),
    Defect(AXIS, "(rest == 0) & (tap >= 0)", "(tap >= 0)"),
    Defect(AXIS, "self.kernel - 1 - tap if self.backwards else tap, inside", "tap, inside"),
    Defect(AXIS, "(kernel - 1) * dilation - pad, dilation", "(kernel - 1) - pad, dilation"),
    Defect(UNFOLD, "tap = row[:, :, None, None] * window.kernel[-1] + col", "tap = row[:, :, None, None] * window.kernel[0] + col"),
    Defect(UNFOLD, "out_line, out] = weights[k]", "out_line, out] = weights[taps[0]]"),
    Defect(AXIS, "first = outs[0] * self.stride - self.pad", "first = outs[0] * self.stride - self.pad + self.spread"),
    Defect(AXIS, "last = (outs[1] - 1) * self.stride - self.pad + self.reach", "last = (outs[1] - 1) * self.stride - self.pad"),
    Defect(UNFOLD, "for at in range(low, high, pixels))", "for at in range(low, high - 1, pixels))"),
    Defect(UNFOLD, "[x for x in xs if outs[0] <= x < outs[1]]", "[x for x in xs if outs[0] < x < outs[1]]"),
    Defect(UNFOLD, "tuple([out - first for out in block.outs])", "tuple(range(len(block.outs)))"),
    Defect(UNFOLD, "if not clipped or _is_inside(window, out))", "if not clipped or out[0] > 0)"),
    Defect(UNFOLD, "found[-1][1] if found else 0", "0"),
    Defect(AXIS, "low, _ = found.pop()", "_, low = found.pop()"),
    Defect(AXIS, "step = (outs[1] - 1 - outs[0]) * self.stride", "step = (outs[1] - 1 - outs[0])"),
    Defect(UNFOLD, "(first, min(first + outputs, outs[1]))) for", "(first, min(first + outputs, outs[1] - 1))) for"),
    Defect(UNFOLD, "axis_of(window, -1).shift(block.pixels[0], first)", "axis_of(window, -1).shift(block.pixels[0], first) + 1"),
    Defect(UNFOLD, "if first[-1] % height == 0:", "if first[-1] % height == 0 and first[-1]:"),
    Defect(AXIS, "firsts = (self.place(i) - k * self.dilation", "firsts = (i - k * self.dilation"),
    Defect(UNFOLD, "shift = tuple(axis.shift(at, out)", "shift = tuple(axis.shift(at, 0)"),
    Defect(UNFOLD, "tuple(tuple(a - b for a, b in zip(out, outs[0], strict=True)) for out in outs)", "tuple((*outs[0][1:], i) for i in range(len(outs)))"),
    # Volumes
    Defect(UNFOLD, "tap * window.kernel[dim] + own, inside & there", "tap * window.kernel[dim - 1] + own, inside & there"),
    Defect(UNFOLD, "tap * window.kernel[dim] + own, inside & there", "tap * window.kernel[dim] + own, inside"),
    Defect(UNFOLD, "band.lines if dim == len(band.shift) - 1 else 1", "1"),
    Defect(UNFOLD, "line, axes = int(np.ravel_multi_index(first, window.in_dims[:-1]))", "line, axes = first[-1]"),
    Defect(AXIS, "line * axis.inputs + i, tap * axis.kernel + k", "line * axis.inputs + i, k"),
    Defect(AXIS, "line * axis.inputs + i, tap * axis.kernel + k", "i, tap * axis.kernel + k"),
    Defect(WINDOWS, "[:, list(self.taps)]", "[:, list(range(len(self.taps)))]"),
    Defect(WINDOWS, "strides=(1, window.strides[-1]),", "strides=(1, window.strides[0]),"),
    Defect(WINDOWS, "row.reshape(-1) * (pixels[1] - pixels[0]) + column[read]", "row.reshape(-1) * width + column[read]"),
    Defect(WINDOWS, "column[read] - pixels[0]", "column[read]"),
    Defect(WINDOWS, "key = pixels[1] - pixels[0], local.tobytes(), weights.tobytes()", "key = pixels[1] - pixels[0], local.tobytes()"),
    Defect(WINDOWS, "key = pixels[1] - pixels[0], local.tobytes(), weights.tobytes()", "key = pixels[1] - pixels[0], weights.tobytes()"),
    Defect(WINDOWS, "alike = bool((weights == weights[:1]).all())", "alike = True"),
    Defect(WINDOWS, "outs = slice(*(y * after.width + x for x in cols))", "outs = slice(*(y * before.width + x for x in cols))"),
    Defect(SIGNALS, "in_dims=(w.batch, *w.in_dims),", "in_dims=(1, *w.in_dims),"),
    Defect(SIGNALS, "kernel=(1, *w.kernel),\n        strides=(1, *w.strides),", "kernel=(1, *w.kernel),\n        strides=(2, *w.strides),"),
    Defect(WINDOWS, "pads=(0, window.pads[-1]),", "pads=(0, window.pads[0]),"),
    Defect(APPLY, "total = tiles[0] if groups == 1 else", "total = tiles[0] if groups >= 1 else"),
    Defect(APPLY, "if self.operator.relu else total", "if self.operator.relu and y else total"),
    Defect(TOKENS, "DotTile(tile, given, other, 1, cols, low)", "DotTile(tile, given, other, 1, cols, 0)"),
    Defect(TOKENS, "stem, tile, parts[p])", "stem, tile, (0, parts[p][1] - parts[p][0]))"),
    Defect(AXES, "dtype=np.float32)[seen.kept] * factor", "dtype=np.float32)[seen.kept[::-1]] * factor"),
    Defect(AXES, "(*seen.chosen[:at], *chosen, *seen.chosen[at + 1 :])", "(*seen.chosen[:at], *chosen[::-1], *seen.chosen[at + 1 :])"),
    Defect(APPLY, "for i in range(len(tiles))])", "for i in range(len(tiles) - 1)])"),
    Defect(APPLY, "[0, i, 0, result.elements]", "[0, 0, 0, result.elements]"),
    Defect(APPLY, "reaching.setdefault(out, []).append((i, shape, tiles))", "reaching.setdefault(out, []).append((0, shape, tiles))"),
    Defect(APPLY, "_Product(weight, index, outs, block, steps[-1].size)", "_Product(weight, index, outs, block, 0)"),
    Defect(APPLY, "len(shape.outs) * len(block.outs) * (outs", "len(block.outs) * (outs"),
    Defect(APPLY, "weight = self.matrices.setdefault(copy, len(self.matrices))", "weight = self.matrices.setdefault(copy, 0)"),
    Defect(APPLY, "(q.block.pixels[0] - first) *", "q.block.pixels[0] *"),
    Defect(APPLY, "(q.weight, i, ", "(q.weight, 0, "),
    Defect(APPLY, "columns.get(q.part, q.block.pixels)[0], q.block.pixels[1]", "columns.get(q.part, q.block.pixels)"),
    Defect(APPLY, "q.at + i * len(outs) * width + low", "q.at + low"),
    Defect(APPLY, "first + n * width", "first + outs[n] * width"),
    Defect(APPLY, "* width + low - q.outs[0]", "* width"),
    Defect(APPLY, "low - q.outs[0], first_source + k", "low - q.outs[0], first_source"),
    Defect(APPLY, "first + n * width", "first + n * own"),
    Defect(APPLY, "(outs[n] - self.cols[0]) * own", "outs[n] * own"),
    Defect(APPLY, "first_source += len(self.work[shape])", "first_source += 0"),
    Defect(APPLY, "for band, shape in found:", "for band, shape in [*found, found[0]]:"),
    Defect(APPLY, "key=lambda n: outs[n] - n if self", "key=lambda n: 0 if self"),
    Defect(APPLY, "chosen, part, self.cols):", "chosen, part, self.cols)[1:]:"),
    Defect(STREAMED, "for cell in grid.under(y, p, cols):\n                begin", "for cell in grid.under(lines[0], p, cols):\n                begin"),
    Defect(GRID, "first = bisect_right(cells, cols[0], key=_end)", "first = bisect_right(cells, cols[0] + 1, key=_end)"),
    Defect(GRID, "cells[first : bisect_left(cells, cols[1], first, key=_begin)]", "cells[first : bisect_left(cells, cols[1] - 1, first, key=_begin)]"),
    Defect(STREAMED, "cols[0] * channels, 0, width * channels", "0, 0, width * channels"),
    Defect(GRID, "at = y * width + cell.cols[0]", "at = y * width"),
    Defect(GRID, "target = (at + pixel) * wide + low - channels[0]", "target = (at + pixel) * wide"),
    Defect(GRID, "source, y * width * wide, 1, width * wide", "source, 0, 1, width * wide"),
    Defect(GRID, "first = (y * width + pixel) * wide + low - channels[0]", "first = (y * width + pixel) * wide"),
    Defect(GRID, "pixel * own + low - part[0], source", "pixel * own, source"),
    Defect(STREAMED, "low - begin, (y - lines[0]) * width + low - left", "low - begin, (y - lines[0]) * width"),
    Defect(STREAMED, "first, at = low - begin, (y", "first, at = 0, (y"),
    Defect(STREAMED, "(y - lines[0]) * width + low", "low"),
    Defect(STREAMED, "line_runs(i, 0, w, part, width) for i, w", "line_runs(0, 0, w, part, width) for i, w"),
    Defect(STREAMED, "row = [Part(Region(p, (0, 1)), c.tile) for p, c in zip(held.parts, cells", "row = [Part(Region(p, (0, 1)), c.tile) for p, c in zip(held.parts, cells[::-1]"),
    Defect("raptor/spatial/make_constants.py", "np.repeat(np.arange(rows), width), channels, 1", "np.zeros(rows * width, np.int64), channels, 1"),
    Defect("raptor/spatial/make_constants.py", "op.vectors.pixels, op.together, op.vectors.channels", "op.vectors.pixels, 1, op.vectors.channels"),
    Defect(GRID, "self.cols == cols if exact else", "self.cols[0] == cols[0] if exact else"),
    Defect(LINES, "Region(parts[p], (y, y + 1), cell.cols))", "Region(parts[p], (y, y + 1)))"),
    Defect(LINES, "return self.line_on(node, grid, y, p, cell.cols, core", "return self.line_on(node, grid, y, 0, cell.cols, core"),
    Defect(LINES, "if w.region.channels == part), None)", "if w.region.channels == part), whole[0].tile)"),
    Defect(WINDOWS, "tuple((line, line) for line, _ in read)", "tuple((line, line) for line, _ in read[:1] + read[:-1])"),
    Defect(AXIS, "given = np.arange(*axis.inputs_of((at, at + 1)))", "given = np.arange(*axis.inputs_of((at, at + 1)))[:axis.inputs - 1]"),
    Defect(LINES, "pads=(window.pads[0], pixels[0] - cols[0] * window.strides[1] + window.pads[1])", "pads=(window.pads[0], window.pads[1])"),
    Defect(WINDOWS, "return self.under[0] - (self.row * self.window.strides[0] - self.window.pads[0])", "return self.window.pads[0]"),
    Defect(WINDOWS, "return max(0, first), min(last, window.in_dims[0])", "return max(0, first), min(last - 1, window.in_dims[0])"),
    Defect(LINES, "StencilTile(tile, given, op.vectors", "StencilTile(tile, op.inputs, op.vectors"),
    Defect(LINES, "cells for grid in grids for cells", "cells for grid in grids[::-1] for cells"),
    Defect(WINDOWS, "first = max(first, last)", "first = max(first, last + 1)"),
    Defect(MOVES, "channel[own] - low", "channel[own]"),
    Defect(MOVES, "(col[own] - given.cols[0]) * (high - low)", "col[own] * (high - low)"),
    Defect(MOVES, "where[own] = len(sources)", "where[own] = 0"),
    Defect(MOVES, "(int(col[own].min()), int(col[own].max()) + 1)", "(int(col[own].min()), int(col[own].max()))"),
    Defect(VIEWS, "sources = sources[:, order]", "sources = sources[:, order[::-1]]"),
    Defect(VIEWS, "numbers[:, np.argsort(self.orders[name])]", "numbers[:, self.orders[name]]"),
    Defect(VIEWS, "weights=np.ascontiguousarray(weights[:, order])", "weights=weights"),
    Defect(VIEWS, "return self.origins[name]", "return self.origins[name][0], np.maximum(self.origins[name][1] - 1, 0)"),
    Defect(PARTS, "(base + a, base + b) for base", "(a, b) for base"),
    # Shapes
    Defect(WINDOW, "at = output * stride - pad + tap * dilation", "at = output * stride - pad + tap"),
    Defect(WINDOW, "(at >= 0) & (at < self.in_dims[d])", "(at >= 0) & (at < self.in_dims[d] - 1)"),
    Defect(WINDOW, "np.where((a >= 0) & (b >= 0), a * size + b, -1)", "np.where((a >= 0) & (b >= 0), a * size + b, 0)"),
    Defect(FOLD, "source is None or uses[source.output] > 1", "source is None"),
    Defect(FOLD, "return taps == 1 and", "return"),
    Defect(VECTOR_UNIT, "operator.weights.swapaxes(0, 1)", "operator.weights.swapaxes(0, 1)[:, ::-1]"),
    # Files
    Defect(CONTENTS, "cols=p.region.cols, address=at)", "cols=p.region.cols, address=at + 1)"),
    Defect(CONTENTS, "tuple(g.matrix.xbars for g in core.groups) for i, core", "tuple(1 for g in core.groups) for i, core"),
    Defect(CONTENTS, "step_ends[step[own]]", "step_ends[step[own] - 1]"),
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
    Defect(APPLY, "self.whole = all(outs in self.outs or outs[0] == outs[1] for outs in found)", "self.whole = True"),
    Defect(POOLS, "strides=(window.strides[0], 1)", "strides=(1, 1)"),
    Defect(POOLS, "pads=(0, window.pads[1])", "pads=(0, 0)"),
    Defect(POOLS, "inputs=((pool.row, column),)", "inputs=((0, column),)"),
    Defect(POOLS, "in enumerate(terms[1:], 1)", "in enumerate(terms[2:], 2)"),
    Defect(PACKING, "if xbars <= self.xbars[core] and ns", "if ns"),
    Defect(PLACES, "tuple(places[core] for core in cores)", "tuple(places[core] // 2 for core in cores)"),
    Defect(PLACES, "tuple(places[core] for core in cores)", "tuple(places[core] for core in cores[::-1])"),
    Defect(NEEDS, "before, index = makers.of_keys(tile[made & ~away])", "before, index = _first(makers, tile[made & ~away]), np.arange(int((made & ~away).sum()))"),
    Defect(NEEDS, "early, fetch = makers.of_keys(fetch_tile)", "early, fetch = makers.of_keys(fetch_tile[:0])"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Defect:
    """A rewrite of a function or class of RAPTOR. `check`: the section of the table, or the id of a test."""

    check: str
    function: str
    rewrite: str

    @property
    def file(self) -> Path:
        return _find(self.function)[0]

    @property
    def module(self) -> str:
        return _module(self.file)

    def tree(self) -> ast.Module:
        """Returns the changed module. Raises `BrokenError` if the table does not fit the code."""
        return self._applied()[0]

    def __str__(self) -> str:
        _, old, new = self._applied()
        return f"{self.function}: {ast.unparse(old)} -> {ast.unparse(new)}"

    def _applied(self) -> tuple[ast.Module, ast.AST, ast.AST]:
        file, name = _find(self.function)
        module = ast.parse(file.read_text())
        try:
            return module, *apply_rewrite(self.rewrite, dict(_definitions(module))[name], module)
        except RewriteError as error:
            raise BrokenError(f"defects.toml: {self.function}: {self.rewrite}: {error}") from None


@cache
def _find(function: str) -> tuple[Path, str]:
    """Returns the file of a function, and its qualified name there."""
    files = _files().get(function.rpartition(".")[2], ())
    ends = f".{function}"
    found = [(file, name) for file in files for name in _names(file) if f".{_module(file)}.{name}".endswith(ends)]
    if len(found) != 1:
        raise BrokenError(f"defects.toml: {len(found)} functions {function}: {[_module(file) for file, _ in found]}")
    return found[0]


@cache
def _names(file: Path) -> tuple[str, ...]:
    """Returns the qualified names of the functions and classes of a file."""
    return tuple(name for name, _ in _definitions(ast.parse(file.read_text())))


@cache
def _files() -> Mapping[str, list[Path]]:
    """Returns for each name the files that define functions or classes of it."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(file for package in ("raptor", "validator") for file in (ROOT / package).rglob("*.py")):
        for name in {*re.findall(r"^ *(?:def|class) (\w+)", file.read_text(), re.MULTILINE)}:
            found[name].append(file)
    return found


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yields the qualified names of functions and classes, and their nodes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt):
            yield from _definitions(child, prefix)


def _read() -> Iterator[Defect]:
    for section, held in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
        tests = {f"{section}::{test}": functions for test, functions in held.items()}
        for check, functions in (tests if section.endswith(".py") else {section: held}).items():
            for function, rewrites in functions.items():
                yield from (Defect(check, function, rewrite) for rewrite in rewrites)


ALL = tuple(_read())
DEFECTS = tuple(defect for defect in ALL if defect.check in ("floats", "integers", "rounds"))
"""Defects of programs."""
WRONG_DECISIONS = tuple(defect for defect in ALL if "::" in defect.check)
"""Wrong decisions: programs are right, but not those that were to be made."""
ENGINE = tuple(defect for defect in ALL if defect.check == "engine")
"""Defects of the meaning of integers in the plain engine."""

if __name__ == "__main__":  # python -m tests.fuzz.defects [FUNCTION ...]: print what each defect changes
    for planted in ALL:
        if planted.function in sys.argv[1:] or not sys.argv[1:]:
            print(planted)
