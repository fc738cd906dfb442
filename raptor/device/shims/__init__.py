"""Interfaces of other projects to crossbars, on devices: `cinnamon`, `occ` and `neuroboard`.

A program for one of them runs on every back end, with an account of writes, time and wear.
"""
