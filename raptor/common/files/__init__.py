"""Files: access with limits, atomic writing, locks, JSON schemas, digests of matrices."""
