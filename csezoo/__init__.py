"""A model zoo of contrastive sentence embeddings: `csezoo.modeling` and `csezoo.training`."""

from importlib.metadata import version
from pkgutil import extend_path

# In a clone, the two packages are not in this directory. An installed csezoo has them.
__path__ = extend_path(__path__, __name__)
__version__ = version("csezoo")
