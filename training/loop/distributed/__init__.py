"""Training on several processes: launch, FSDP 2 and DeepSpeed's ZeRO.

May import recipes, errors, files and `loop.precision`.
"""
