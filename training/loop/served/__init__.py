"""What a run serves: its best weights, or an average of them, and a whitening or a flow after the last update.

May import what the loop may, and nothing of the loop itself.
"""
