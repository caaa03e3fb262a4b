"""Whether code of a checkpoint loads and saves the checkpoint itself, or something else."""

from __future__ import annotations

import ast

# Functions of a checkpoint whose first argument is the directory or the repository that it is saved to or loaded from.
PLACED = {"_complete", "from_pretrained", "save_pretrained", "save_tokenizer", "_upload_modified_files"}
PLACED |= {"write_sentence_transformers_files"}
# Functions that load or save what their first argument names. It must be the checkpoint itself.
LOADERS = PLACED | {"cached_file", "get_config_dict", "to_json_file"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def of_the_checkpoint(node: ast.Call, function: Function | None, method: bool) -> bool:
    """Return whether a call loads or saves the checkpoint that the code belongs to.

    It does if its first argument is the first argument of a function in `PLACED`, a file in that directory, or the
    place from which the model was loaded.
    """
    named = ("pretrained_model_name_or_path", "path_or_repo_id", None)
    sources = node.args[:1] or [keyword.value for keyword in node.keywords if keyword.arg in named]
    return bool(sources) and all(_is_origin(source, function, method) for source in sources)


def _place(function: Function | None, method: bool) -> str | None:
    """Return the name of the first argument of the current function, if the function is one of `PLACED`."""
    if function is None or function.name not in PLACED:
        return None
    arguments = [*function.args.posonlyargs, *function.args.args][method:]
    first = next(iter([*arguments, *filter(None, [function.args.vararg])]), None)
    return None if first is None or _times_assigned(first.arg, function) else first.arg


def _is_origin(node: ast.expr, function: Function | None, method: bool) -> bool:
    """Return whether a value says where the model was loaded from, or is a file that was loaded from there."""
    match node:
        case ast.Attribute(attr="loaded_from"):
            return True
        case ast.Name(name) | ast.Starred(ast.Name(name)) if name == _place(function, method):
            return True
        case ast.JoinedStr([ast.FormattedValue(ast.Name(name)), *parts]) if name == _place(function, method):
            return all(map(_is_file_name, parts))
        case ast.Name(name):
            return bool(values := _values(name, function)) and all(
                _is_origin(value, function, method) for value in values
            )
        case ast.Call(func=ast.Name("dict" | "cast"), args=[*_, value], keywords=[]):
            return _is_origin(value, function, method)
        case ast.Call(func=ast.Attribute(value, "pop")):
            return _is_origin(value, function, method)
        case ast.Call(func=ast.Name("cached_file")):
            return of_the_checkpoint(node, function, method)
    return False


def _values(name: str, function: Function | None) -> list[ast.expr]:
    """Return all values of a variable of the current function; none if one cannot be known."""
    nodes = list(ast.walk(function)) if function else []
    plain = [
        node
        for node in nodes
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]
    return [node.value for node in plain] if len(plain) == _times_assigned(name, function) else []


def _times_assigned(name: str, function: Function | None) -> int:
    times = 0
    for node in ast.walk(function) if function else ():
        match node:
            case ast.Name(id=one, ctx=ast.Store() | ast.Del()) | ast.alias(asname=str(one)):
                times += one == name
            case ast.ExceptHandler(name=str(one)) | ast.MatchAs(name=str(one)) | ast.MatchStar(name=str(one)):
                times += one == name
            case ast.FunctionDef(name=one) | ast.ClassDef(name=one) | ast.MatchMapping(rest=str(one)):
                times += one == name
    return times


def _is_file_name(part: ast.expr) -> bool:
    """Return whether a part of an f-string, after a directory, stays in that directory: a text or a constant."""
    match part:
        case ast.Constant(str(text)):
            return ".." not in text
        case ast.FormattedValue(ast.Name(name)):
            return name.isupper()
    return False
