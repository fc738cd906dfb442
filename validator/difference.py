"""Integers in which onnxruntime departs from the definition."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Difference:
    """An integer tensor of `total` elements, of which onnxruntime has `count` others; `explained` of them by a tie.

    `at`, `got` (of onnxruntime) and `want` belong to the first element that is not explained, else to the first.
    """

    tensor: str
    node: str
    total: int
    count: int = 0
    explained: int = 0
    at: tuple[int, ...] = ()
    got: int = 0
    want: int = 0

    @property
    def unexplained(self) -> int:
        return self.count - self.explained

    def plus(self, other: "Difference") -> "Difference":
        """Adds the same tensor for another input."""
        shown = other if (other.unexplained, other.count) > (self.unexplained, self.count) else self
        total, count = self.total + other.total, self.count + other.count
        return replace(shown, total=total, count=count, explained=self.explained + other.explained)
