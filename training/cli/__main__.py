"""`python -m csezoo.training.cli`, which `accelerate launch -m` starts on several processes."""

from .parser import main

if __name__ == "__main__":
    main()
