"""Fine-tuning on the tasks of GLUE.

May import the rest of evaluation.
"""
