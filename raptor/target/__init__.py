"""The machine: instructions and their encoding, architecture and network, times of an instruction."""
