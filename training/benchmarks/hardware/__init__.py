"""Benchmarks of a machine: what a device can do, and where the time of an update goes.

May import every wing except `cli`.
"""
