"""A finished repository: saved, fingerprinted, audited, published, exported.

May import cards; it never trains.
"""
