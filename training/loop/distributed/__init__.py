"""More than one process: launch, FSDP 2, DeepSpeed's ZeRO.

May know recipes and errors alone.
"""
