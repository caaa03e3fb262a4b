"""What is computed from the weights after the last update: an average of checkpoints, a whitening, a flow.

May import what the loop may, and nothing of the loop itself.
"""
