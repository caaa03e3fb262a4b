"""Recipes, data, the training loop, evaluation, publishing and the command line."""
