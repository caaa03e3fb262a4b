# With this file mypy takes `csezoo.training.recipes` for the module, and not for the directory of that name.
