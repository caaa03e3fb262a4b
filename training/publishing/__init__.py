"""Save, fingerprint, audit, publish and export finished repositories.

May import `cards`; trains nothing.
"""
