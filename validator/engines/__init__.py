"""Engines that execute programs: the plain reference, which defines the meaning, and the compiled engine."""
