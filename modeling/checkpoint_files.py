"""Complete the code files of a saved checkpoint. This file itself is not saved with one."""

import json
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports

HEADER = "# transformers 4 loads only the files that this file imports, not what they import in turn.\n"


def name_all_imports(directory: str | Path) -> None:
    """Make the files that a checkpoint's `auto_map` names import every file they need.

    transformers 5 also follows the imports of imported files, and so does transformers 4 on the Hub, but not in a
    local directory. This function adds the missing imports at the end of the files, under a name that is not used.

    Args:
        directory: a saved checkpoint with its code.
    """
    directory = Path(directory)
    auto_map = json.loads((directory / "config.json").read_text(encoding="utf-8"))["auto_map"]
    modules = {reference.split(".")[0] for reference in auto_map.values()}
    # A class that is not registered with the Auto classes is saved without its code.
    for file in sorted(directory / f"{module}.py" for module in modules if (directory / f"{module}.py").is_file()):
        needed = {Path(path).stem for path in get_relative_import_files(file)}
        if missing := sorted(needed - set(get_relative_imports(file))):
            lines = [f"from .{name} import __name__ as _  # noqa: E402, F401\n" for name in missing]
            file.write_text(file.read_text(encoding="utf-8") + "\n" + HEADER + "".join(lines), encoding="utf-8")
