"""Save, fingerprint, audit, publish and export finished repositories.

May know `cards`; trains nothing.
"""
