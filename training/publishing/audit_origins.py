"""Where names and values in the code of a checkpoint come from.

It may load and save the checkpoint itself, but nothing else. Its annotations are types, and not texts: libraries run
such texts as code.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator, Mapping

# Functions of a checkpoint whose first argument is the directory or the repository that it is saved to or loaded from.
PLACED = {"_complete", "from_pretrained", "save_pretrained", "save_tokenizer", "_upload_modified_files"}
PLACED |= {"write_sentence_transformers_files"}
# Functions that load or save what their first argument names. It must be the checkpoint itself.
LOADERS = PLACED | {"cached_file", "get_config_dict", "to_json_file"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
# For each file, the names that its imports of libraries bind, and the full names of what they import.
Imports = Mapping[str, list[tuple[str, str]]]


def defined_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes that a file defines: methods, buffers, and what is assigned to an object or in a class."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                yield name
            case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(str(name)), *_]):
                yield name
            case ast.ClassDef(body=body):
                stored = (inner for statement in body for inner in ast.walk(statement))
                yield from (name.id for name in stored if isinstance(name, ast.Name))


def unbound_names(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a file may look up among the builtins.

    A variable of a function is never looked up there. A variable of a module or a class is, until it is assigned.
    """
    function = table.get_type() == "function"
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or not function)
    }
    return names.union(*map(unbound_names, table.get_children()))


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield for each import of a library the name that it binds, and the full name of what it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


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


def _parameters(function: Function | None) -> set[str]:
    arguments = function.args if function else None
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs] if arguments else []
    return {argument.arg for argument in named}


def _is_origin(node: ast.expr, function: Function | None, method: bool) -> bool:
    """Return whether a value says where the model was loaded from, or is a file that was loaded from there."""
    match node:
        case ast.Attribute(ast.Name(name), "loaded_from"):  # of a model that the function is given, often `self`
            return name in _parameters(function) and not _times_assigned(name, function)
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
            case ast.Name(id=one, ctx=ast.Store() | ast.Del()):
                times += one == name
            case ast.alias(name=one, asname=other):
                times += name == (other or one)
            case ast.Lambda(args=arguments):  # its parameters are other variables of the same name
                times += any(isinstance(each, ast.arg) and each.arg == name for each in ast.walk(arguments))
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


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a class or a module, without those of functions that define neither a class nor a global."""
    for child in ast.iter_child_nodes(node):
        inner = isinstance(child, Function | ast.Lambda) and not any(
            isinstance(each, ast.ClassDef | ast.Global | ast.Nonlocal) for each in ast.walk(child)
        )
        if not inner:
            yield child
            yield from own_nodes(child)


def untyped_names(trees: Mapping[str, ast.AST], libraries: Mapping[str, set[str]]) -> set[str]:
    """Return the names that may be something else than a type, wherever in the files.

    Args:
        trees: of all files.
        libraries: the names that each file imports from a library.
    """
    untyped: set[str] = set()
    aliases: list[tuple[str, ast.expr, set[str]]] = []
    for file, tree in trees.items():
        nodes, seen = list(own_nodes(tree)), set()
        for node in nodes:
            match node:
                case ast.Assign([ast.Name(name) as target], value):
                    aliases.append((name, value, libraries[file]))
                    seen.add(id(target))
                case ast.ImportFrom(names=names, level=1):
                    aliases += [(one.asname, ast.Name(one.name), libraries[file]) for one in names if one.asname]
        stored = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        untyped |= {node.id for node in stored if id(node) not in seen}
        untyped |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    while new := {name for name, value, known in aliases if not _makes_type(value, untyped, known)} - untyped:
        untyped |= new
    return untyped


def _makes_type(value: ast.expr, untyped: set[str], libraries: set[str]) -> bool:
    match value:
        case ast.Call(func=ast.Name("TypeVar" | "ParamSpec" as name)):
            return name in libraries
    return is_type(value, untyped, libraries)


def is_type(node: ast.expr, untyped: set[str], libraries: set[str]) -> bool:
    """Return whether an annotation is a type, written down as such.

    Args:
        node: the annotation.
        untyped: see `untyped_names`.
        libraries: the names that the file imports from a library.

    Example:
        >>> [is_type(ast.parse(text, mode="eval").body, set(), {"nn"}) for text in ("nn.Module | None", "x[::-1]")]
        [True, False]
    """
    match node:
        case ast.Constant(str(text)):
            try:
                return is_type(ast.parse(text.strip(), mode="eval").body, untyped, libraries)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return False
        case ast.Constant():
            return True
        case ast.Name(name):
            return name not in untyped
        case ast.Attribute(ast.Name() | ast.Attribute() as of):
            root: ast.expr = of
            while isinstance(root, ast.Attribute):
                root = root.value
            return isinstance(root, ast.Name) and root.id in libraries and root.id not in untyped
        case ast.Subscript(ast.Name("Literal" as name) | ast.Attribute(ast.Name(name), "Literal"), of):
            parts = of.elts if isinstance(of, ast.Tuple) else [of]
            return name in libraries and all(isinstance(part, ast.Constant | ast.UnaryOp) for part in parts)
        case ast.Subscript(value=value, slice=of):
            return is_type(value, untyped, libraries) and is_type(of, untyped, libraries)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_type(left, untyped, libraries) and is_type(right, untyped, libraries)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(is_type(part, untyped, libraries) for part in parts)
    return False
