"""Search by simulation: `cost` measures a program, `mappings` searches for a mapping, `mixed` for bit widths."""
