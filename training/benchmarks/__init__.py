"""Benchmarks of speed and memory: most time csezoo against the usual way to do the same work.

May know every wing except `cli`.
"""
