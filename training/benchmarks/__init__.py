"""Benchmarks of speed and memory: most time csezoo against the usual way to do the same work.

May import every wing except `cli`.
"""
