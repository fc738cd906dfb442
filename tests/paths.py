"""Folders that tests read: a test asks here, not by its own place, so that its file can lie in any folder."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository, or the copy of it that is tested."""

GOLDEN = ROOT / "tests" / "golden"
"""Stored texts of passes; `make goldens` writes all of them anew."""
