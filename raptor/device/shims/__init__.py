"""Crossbar interfaces of other projects, implemented on devices: `cinnamon`, `occ` and `neuroboard`.

A program for one of these interfaces runs on every back end, with statistics of writes, time and wear.
"""
