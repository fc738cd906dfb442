"""Basis of all packages: errors, console, checks of arguments and their spelling, pydantic files, compiled loops."""
