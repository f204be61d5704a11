"""Figures that anyone can make again.

A module has its settings, a `run` that never plots and a `draw` that never trains.
"""
