"""Scheduling: dependences, list schedule and ALAP times of the computes of a graph."""
