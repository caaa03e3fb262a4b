"""Fine-tuning on the tasks of GLUE.

May know the rest of evaluation.
"""
