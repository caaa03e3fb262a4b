"""Fine-tuning on GLUE's tasks.

May know the rest of evaluation.
"""
