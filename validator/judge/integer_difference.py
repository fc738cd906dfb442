"""Differences between the integers of onnxruntime and of the definition."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class IntegerDifference:
    """An integer tensor of `total` elements: `count` differ in onnxruntime, and a tie explains `explained` of these.

    `at`, `got` (of onnxruntime), `want`: at the first element that is not explained, else the first that differs.
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

    def add_input(self, other: "IntegerDifference") -> "IntegerDifference":
        """Adds the differences of the same tensor for another input."""
        shown = other if (other.unexplained, other.count) > (self.unexplained, self.count) else self
        total, count = self.total + other.total, self.count + other.count
        return replace(shown, total=total, count=count, explained=self.explained + other.explained)
