"""Chips from their components: a file of parts with energies, times and areas becomes an architecture file."""
