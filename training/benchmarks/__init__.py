"""Benchmarks of speed and memory. Most of them compare csezoo with the usual way to do the same work.

May import every wing except `cli`.
"""
