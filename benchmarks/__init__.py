"""Measurements: `python -m benchmarks.ROOM.NAME`, most of them by a target of the Makefile.

`speed`: time and memory of our own commands. `programs`: figures of compiled programs on the modelled chip.
`correctness`: accuracy and verdicts. `search`: samplers and estimators of studies. `tables`: stores what the others
print in `results`, for the pages.
"""
