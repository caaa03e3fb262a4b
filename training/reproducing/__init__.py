"""The papers' tables and figures: manifests, the runs they need, and the tables made from these runs.

May import the wings from `recipes` to `loop`; starts each run as a process of its own.
"""
