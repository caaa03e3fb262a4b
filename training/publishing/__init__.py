"""A finished repository: saved, fingerprinted, audited, published, exported.

May know cards; it never trains.
"""
