"""What `best/` is made from: the best weights, an average of them, a whitening or a flow after the last update.

May import what the loop may, and nothing of the loop itself.
"""
