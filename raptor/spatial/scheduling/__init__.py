"""Scheduling: dependences, list schedule, ALAP times, and the choice of an order."""
