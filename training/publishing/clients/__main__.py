import sys
from pathlib import Path

from .table import filled

file = Path(sys.argv[1])
file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
