"""`python -m csezoo.training.cli`: the `csezoo` command for `accelerate launch -m` (several processes)."""

from .parser import main

if __name__ == "__main__":
    main()
