"""Disjoint sets of names, which are joined."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class DisjointSets:
    """Sets of names: each set is known by one of its members. A name that was never joined is a set of its own."""

    parent: dict[str, str] = field(default_factory=dict[str, str])

    def find(self, name: str) -> str:
        """Returns the member by which the set of a name is known."""
        while name in self.parent:
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        """Makes the sets of two names one, which is known as that of the first was."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[b] = a
