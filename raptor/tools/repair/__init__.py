"""Chips with defects: chip files (`raptor arch defects`), and programs that make up for them (`raptor repair`)."""
