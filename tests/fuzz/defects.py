"""The table of planted defects: a text of a source file, and what stands there instead.

A text that no longer occurs exactly once fails, so that the table keeps step with the code.
"""
# ruff: noqa: E501 one defect a line

from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.campaign import BrokenError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Defect:
    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """The changed text of the file."""
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise BrokenError(f"{self.file}: {self.old!r} occurs {text.count(self.old)} times; mend this table")
        return text.replace(self.old, self.new)


EMIT, PLACE, ALLOCATE, MEMORY = (f"raptor/{n}.py" for n in ("codegen/emit", "pim/place", "pim/allocate", "pim/memory"))
LOWER, CASCADE, ROWS = (f"raptor/spatial/{n}.py" for n in ("lower", "cascade", "rows"))
VIRTUAL = "raptor/codegen/virtual.py"
WINDOW, LAYOUT, UNFOLD, MAPPING = (f"raptor/{n}.py" for n in ("window", "layout", "unfold", "mapping"))
FOLD, DEPTHWISE, COMPILER = (f"raptor/{n}.py" for n in ("spatial/fold", "spatial/depthwise", "compiler"))

DEFECTS: tuple[Defect, ...] = (
    # Instructions
    Defect(EMIT, "out_address = self.at(op.out) + pixel * op.out_channels", "out_address = self.at(op.out) + pixel * op.in_channels"),
    Defect(EMIT, "first = np.append(True, pixel[1:] != pixel[:-1])[: len(pixel)]\n        # A product", "first = np.append(True, pixel[1:] == pixel[:-1])[: len(pixel)]\n        # A product"),
    Defect(EMIT, '(inputs[pixel, index] * op.in_channels + op.channel)', '(inputs[pixel, index] * op.in_channels)'),
    Defect(EMIT, 'block["c"][product] = np.array(op.groups)[index]', 'block["c"][product] = np.array(op.groups)[index - 1]'),
    Defect(EMIT, 'block["b"][product] = op.relu', 'block["b"][product] = 0'),
    Defect(EMIT, "return np.concatenate([self._zeros(op.out, untouched, op.out_channels), block])", "return block"),
    Defect(EMIT, 'block["d"][add] = op.out_channels', 'block["d"][add] = op.out_channels - 1'),
    Defect(EMIT, 'block["d"] = lengths * channels * self.element_bytes', 'block["d"] = channels * self.element_bytes'),
    Defect(EMIT, "target = self.at(op.out) + outputs * op.out_channels", "target = self.at(op.out) + np.arange(len(outputs)) * shape.outputs * op.out_channels"),
    Defect(EMIT, "set_operand(sums, 1, OUT, target[window[added]])", "set_operand(sums, 1, SCRATCH, scratch)"),
    Defect(EMIT, "return np.concatenate([zeros, block[order]])", "return np.concatenate([block[order], zeros])[: len(block)]"),
    Defect(EMIT, "ends = np.array([0, op.left + op.source.elements])", "ends = np.array([0, op.source.elements])"),
    Defect(EMIT, "self.at(op.out) + op.left * self.element_bytes)", "self.at(op.out))"),
    Defect(EMIT, "(np.cumsum(sizes) - sizes) * self.element_bytes", "np.cumsum(sizes) * self.element_bytes"),
    Defect(EMIT, "(steps if buffer.elements > length else 0)", "steps"),
    Defect(EMIT, "np.where(starts == 0, self.at(op.source), self.at(op.out))", "self.at(op.source) + starts"),
    Defect(EMIT, "[op.row * op.widths[1] :][:pixels]", "[: pixels]"),
    Defect(EMIT, "pixels = np.flatnonzero(counts > k)", "pixels = np.flatnonzero(counts >= k)"),
    Defect(EMIT, 'block["d"] = lengths * op.channels\n        return block\n\n    def _pool_source', 'block["d"] = op.channels\n        return block\n\n    def _pool_source'),
    Defect(EMIT, 'side="right") - 1', 'side="left")'),
    Defect(EMIT, "pixel * op.out_channels + copy.target_channel", "pixel * op.out_channels"),
    Defect(EMIT, "pixel * copy.source_channels + copy.source_channel", "pixel * op.out_channels + copy.source_channel"),
    Defect(EMIT, "used = (inputs >= 0) & (index != ZERO_WEIGHT)", "used = index != ZERO_WEIGHT"),
    Defect(EMIT, "(batch * op.cols + op.first + col)", "(batch * op.cols + col)"),
    Defect(EMIT, "(batch * op.rows + row) * pixel_bytes", "row * pixel_bytes"),
    Defect(EMIT, 'block["value"][strided, 2] = stride[strided]', 'block["value"][strided, 2] = 1'),
    Defect(EMIT, 'block["opcode"][zeros] = isa.OPCODE["lldi"]', 'block["opcode"][zeros] = isa.OPCODE["nop"]'),
    Defect(EMIT, "(np.where(first, OUT, SCRATCH)[weighted], np.where(first, out, accum)[weighted])", "(np.full(len(weighted), OUT), out[weighted])"),
    Defect(EMIT, 'set_operand(block, 0, OUT, self.at(op.out))\n        block["a"]', 'set_operand(block, 0, OUT, self.at(op.out) + self.element_bytes)\n        block["a"]'),
    # Registers
    Defect(VIRTUAL, "needed[uses[1:]] = held[1:] != held[:-1]", "needed[uses[1:]] = held[1:] > held[:-1]"),
    # Memory
    Defect(ALLOCATE, "room >= size[i]", "room >= size[i] // 2"),
    Defect(ALLOCATE, "(first <= last[i]) & (last >= first[i])", "(first < last[i]) & (last > first[i])"),
    Defect(ALLOCATE, "dying = (b for b in op.operands if last[b] == i and", "dying = (b for b in op.operands if"),
    Defect(ALLOCATE, "np.maximum.accumulate(start[alive] + size[alive])", "start[alive] + size[alive]"),
    Defect(MEMORY, "self.known[key] = self.base + self.size\n", "self.known[key] = self.base + self.size + 1\n"),
    Defect(MEMORY, "position + pool.size)", "position)"),
    Defect(MEMORY, "starts = np.cumsum([position, *sizes])", "starts = np.cumsum([position, *sizes[::-1]])"),
    # Cores and messages
    Defect(PLACE, "ir.Receive(buffer, source, self.channels)", "ir.Receive(buffer, source, self.channels + 1)"),
    Defect(PLACE, "ir.Send(self.cores[source].here[tile.name], core, self.channels)", "ir.Send(next(iter(self.cores[source].here.values())), core, self.channels)"),
    Defect(PLACE, "left * tile.channels), node)", "right * tile.channels), node)"),
    Defect(PLACE, "self.first_group[key] = len(groups)", "self.first_group[key] = max(0, len(groups) - 1)"),
    Defect(PLACE, "groups=tuple(site.first_group + i for i in op.weights),\n        taps", "groups=tuple(i for i in op.weights),\n        taps"),
    Defect(PLACE, "rows, count = op.result.pixels // op.batch, op.result.channels", "rows, count = op.result.pixels // op.batch, op.result.channels - 1"),
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
    Defect(MAPPING, "core, free = core + 1, arch.xbars_per_core\n            free", "core, free = core + 1, arch.xbars_per_core + 1\n            free"),
    # Rows
    Defect(ROWS, "y * window.strides[0] - window.pads[0] + k * window.dilations[0] for k in range(window.kernel[0]))\n        lines", "y * window.strides[0] + k * window.dilations[0] for k in range(window.kernel[0]))\n        lines"),
    Defect(ROWS, "stages = chosen.replicas[y % len(chosen.replicas)]", "stages = chosen.replicas[y % len(chosen.replicas)][:1]"),
    Defect(ROWS, "inputs = tuple((i, source[i]) for i in at if 0 <= i < len(source))", "inputs = tuple((i, source[i]) for i in at if 0 <= i < len(source) - 1)"),
    Defect(ROWS, "y * size, 1, size", "0, 1, size"),
    Defect(UNFOLD, "tap, remainder = np.divmod(pixel - k * shape.stride, shape.dilation)", "tap, remainder = np.divmod(pixel - k, shape.dilation)"),
    Defect(UNFOLD, "return np.minimum(starts, self.out_width - self.outputs)", "return starts"),
    Defect(UNFOLD, "last = int(self.first_outputs()[-1]) * self.stride - self.pad + self.patch_width", "last = int(self.first_outputs()[-1]) * self.stride - self.pad + self.patch_width - 1"),
    # Shapes
    Defect(WINDOW, "at = output * stride - pad + tap * dilation", "at = output * stride - pad + tap"),
    Defect(WINDOW, "(at >= 0) & (at < self.in_dims[d])", "(at >= 0) & (at < self.in_dims[d] - 1)"),
    Defect(WINDOW, "np.where((a >= 0) & (b >= 0), a * size + b, -1)", "np.where((a >= 0) & (b >= 0), a * size + b, 0)"),
    Defect(FOLD, "uses[source.output] == 1 and _single_product", "_single_product"),
    Defect(FOLD, "return taps == 1 and", "return"),
    Defect(DEPTHWISE, "operator.weights.swapaxes(0, 1)", "operator.weights.swapaxes(0, 1)[:, ::-1]"),
    # Files
    Defect(COMPILER, "address=at * element_bytes)", "address=at)"),
    Defect(COMPILER, "tuple(g.matrix.xbars for g in core.groups) for i, core", "tuple(1 for g in core.groups) for i, core"),
    Defect(COMPILER, "pc=int(streams.cores[spot.core].step_ends[spot.step])", "pc=int(streams.cores[spot.core].step_ends[spot.step - 1])"),
)  # fmt: skip
