"""Union-find over names."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class DisjointSets:
    """Union-find over names: each set has a representative. A name that was never joined is a set of one element."""

    parent: dict[str, str] = field(default_factory=dict[str, str])

    def find(self, name: str) -> str:
        """Returns the representative of the set that contains `name`."""
        while name in self.parent:
            name = self.parent[name]
        return name

    def union(self, a: str, b: str) -> None:
        """Merges two sets. The representative of `a` is kept."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
