"""Find what the code of a checkpoint does not need, with an allow-list and without running the code."""

from __future__ import annotations

import ast
import builtins
import re
import string
import symtable
import tokenize
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import PurePosixPath

from ..errors import one_line
from .audit_allowed import (
    ATTRIBUTES,
    BUILTINS,
    CALLED,
    MODULES,
    OPTIONS,
    OWN_ATTENTION,
    PLACES,
    REASONS,
    SETTINGS,
    classes_in_use,
    in_their_place,
    pattern,
)
from .audit_origins import (
    LOADERS,
    PLACED,
    Function,
    Imports,
    defined_attributes,
    imported_names,
    is_type,
    of_the_checkpoint,
    own_nodes,
    unbound_names,
    untyped_names,
)

IMPORTABLE = [(re.compile(module), pattern(names)) for module, names in MODULES.items()]
HARMLESS = pattern(ATTRIBUTES)
FUNCTIONS = pattern(BUILTINS)
UNNEEDED = "a model does not need it"
UNKNOWN = "may load or save something other than the checkpoint"
CONTROLS = re.compile("[\u202a-\u202e\u2066-\u2069]")  # they show code in another order
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*[A-Za-z0-9](:\w+)?")  # OWNER/NAME on the Hub
# Names that decide what is loaded, as keywords and as texts: those are keys of dictionaries and fields of tuples.
KEYWORDS = {**OPTIONS, **SETTINGS, "loaded_from": SETTINGS["name_or_path"]}
TEXTS = {name: why for name, why in KEYWORDS.items() if name != "auto_map"}  # the zoo's configurations have this key
OUTSIDE = re.compile(r"(~|\.\.)?/\w.*|.*/\.\./.*")


def audit_sources(sources: Mapping[str, bytes]) -> Iterator[tuple[str, int | None, str]]:
    """Find the imports, calls and names in Python files that the code of a checkpoint does not need.

    Args:
        sources: content of every Python file of a repository, by path.

    Returns:
        File, line and reason of each finding. The line is `None` if the finding is about the complete file.

    Example:
        >>> list(audit_sources({"a.py": b"from os import system"}))
        [('a.py', 1, 'imports os.system, which starts programs')]
    """
    trees, unbound = {}, {}
    for name, source in sources.items():
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
            if encoding not in ("utf-8", "utf-8-sig"):
                yield name, 1, f"is written in {encoding}, so Python may run another text than you read"
            if CONTROLS.search(source.decode("utf-8", "replace")):
                yield name, None, "has invisible characters that show the code in another order"
            tree = ast.parse(source)
            unbound[name] = unbound_names(symtable.symtable(source.decode("utf-8-sig"), name, "exec"))
            trees[name] = tree
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield name, None, f"is not valid Python ({one_line(error)})"
    defined = {attribute for tree in trees.values() for attribute in defined_attributes(tree)}
    imports = {name: list(imported_names(tree)) for name, tree in trees.items()}
    untyped = untyped_names(trees, {name: {bound for bound, _ in found} for name, found in imports.items()})
    for name in trees:
        reader = _Reader(name, trees[name], imports, defined, unbound[name], untyped)
        try:
            reader.visit(trees[name])
        except RecursionError:
            yield name, None, "is nested too deeply to be read"
        yield from ((name, line, why) for line, why in dict.fromkeys(reader.findings))


def _is_module(dotted: str) -> bool:
    return any(module.fullmatch(dotted) for module, _ in IMPORTABLE)


def _refusal(dotted: str) -> str | None:
    """Return why a model does not need this part of a library; `None` if it does."""
    module, _, name = dotted.rpartition(".")
    if _is_module(dotted) or any(one.fullmatch(module) and names.fullmatch(name) for one, names in IMPORTABLE):
        return None
    return next((REASONS[part] for part in dotted.split(".")[::-1] if part in REASONS), UNNEEDED)


class _Reader(ast.NodeVisitor):
    """Reads one file and collects the findings: line and reason.

    Args:
        file: its path in the repository.
        tree: its syntax tree.
        imports: the imports of all files.
        defined: the attributes that all files define.
        unbound: the names that may be builtins.
        untyped: the names of all files that may be something else than a type.
    """

    def __init__(
        self, file: str, tree: ast.AST, imports: Imports, defined: set[str], unbound: set[str], untyped: set[str]
    ):
        self.file, self.imports, self.defined, self.unbound, self.untyped = file, imports, defined, unbound, untyped
        self.findings: list[tuple[int, str]] = []
        self.annotation = False  # whether an annotation is read
        self.functions: list[Function] = []  # around the node that is read
        self.imported: dict[str, set[str]] = {}  # what an imported name may be
        for bound, dotted in imports[file]:
            self.imported.setdefault(bound, set()).add(dotted)
        nodes = list(ast.walk(tree))
        self.in_place = {id(part) for node in nodes for part in in_their_place(node)}
        self.classes = {id(part) for node in nodes for part in classes_in_use(node)}
        self.methods = {item for node in nodes if isinstance(node, ast.ClassDef) for item in node.body}
        self.assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        self.assigned |= {node.arg for node in nodes if isinstance(node, ast.arg)}

    def report(self, node: ast.AST, why: str) -> None:
        self.findings.append((node.lineno, why))  # type: ignore[attr-defined]  # only nodes with a line are reported

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not _is_module(alias.name):
                self.report_import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.report(node, f"imports * of {node.module}: hides which names it imports")
            elif node.level > 0:
                self.relative_import(node, alias.name)
                if alias.name in PLACED and alias.asname:
                    self.report(node, f"{alias.asname}: {UNKNOWN}")
            elif _refusal(dotted := f"{node.module}.{alias.name}"):
                self.report_import(node, dotted)

    def report_import(self, node: ast.stmt, dotted: str) -> None:
        why = _refusal(dotted)
        self.report(node, f"imports {dotted}" + (f", which {why}" if why != UNNEEDED else f": {why}"))

    def relative_import(self, node: ast.ImportFrom, name: str) -> None:
        file = PurePosixPath(self.file).with_name(f"{node.module}.py").as_posix()
        if node.level > 1 or not node.module:
            self.report(node, "imports from outside its directory, or a package without a name")
        elif file not in self.imports:
            self.report(node, f"imports .{node.module}, which does not exist")
        elif name in dict(self.imports[file]):
            self.report(node, f"imports {name} through .{node.module}: hides which library it belongs to")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == "loaded_from" and isinstance(node.ctx, ast.Store):
            self.assignment(node, node.id)
        imported = self.imported.get(node.id, set())
        if any(map(_is_module, imported)):
            self.report(node, f"{node.id}: a module as a value hides which of its functions are used")
        for dotted in imported & PLACES.keys():
            if id(node) not in self.in_place:
                self.report(node, f"{node.id}: {PLACES[dotted]}")
        if node.id in PLACED or any(dotted.rpartition(".")[2] in LOADERS for dotted in imported):
            self.report(node, f"{node.id}: {UNKNOWN}")
        dunder = node.id.startswith("__") and node.id.endswith("__")
        if node.id in self.unbound and (dunder or node.id in dir(builtins)):
            if node.id == "type" and self.annotation:
                return
            if node.id in CALLED:
                self.report(node, f"{node.id}: {CALLED[node.id]}")
            elif not FUNCTIONS.fullmatch(node.id):
                self.report(node, f"{node.id}: {REASONS.get(node.id, UNNEEDED)}")
        elif dunder and node.id in REASONS:
            self.report(node, f"{node.id}: {REASONS[node.id]}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            names.insert(0, root.attr)
            root = root.value
        imported = self.imported.get(root.id, set()) if isinstance(root, ast.Name) else set()
        for dotted in imported:
            rest = names.copy()
            while rest and _is_module(dotted):
                dotted = f"{dotted}.{rest.pop(0)}"
            if why := _refusal(dotted):
                self.report(node, f"{dotted}: {why}")
            elif _is_module(dotted):
                self.report(node, f"{dotted}: a module as a value hides which of its functions are used")
            else:
                self.attributes(node, rest)
            if dotted in PLACES and (rest or id(node) not in self.in_place):
                self.report(node, f"{dotted}: {PLACES[dotted]}")
        if names[-1] == "__class__" and id(node) not in self.classes:
            self.report(node, f".__class__: {CALLED['type']}")
        if isinstance(root, ast.Name) and imported:
            if root.id in self.assigned:  # elsewhere in the file it may be any object
                self.attributes(node, names)
            if not isinstance(node.ctx, ast.Load):
                self.report(node, f"{ast.unparse(node)} is set: changes a library")
        else:
            self.visit(root)
            self.attributes(node, names)
        if not isinstance(node.ctx, ast.Load):
            self.assignment(node, node.attr)

    def attributes(self, node: ast.AST, names: list[str]) -> None:
        """Report the attributes of any object that a model does not need. A tensor's may end in `_` (in place)."""
        for name in names:
            if name in LOADERS:
                self.report(node, f".{name}: {UNKNOWN}")
            elif HARMLESS.fullmatch(name) or HARMLESS.fullmatch(name.removesuffix("_")):
                continue
            elif name in REASONS:
                self.report(node, f".{name}: {REASONS[name]}")
            elif name not in self.defined or name.startswith("__"):
                self.report(node, f".{name}: {UNNEEDED}")

    def assignment(self, node: ast.AST, name: str) -> None:
        if name in SETTINGS:
            self.report(node, f".{name} is set: {SETTINGS[name]}")
        if name == "loaded_from" and (not self.functions or self.functions[-1].name != "from_pretrained"):
            self.report(node, f".{name} is set: {SETTINGS['name_or_path']}")

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign([ast.Attribute(owner, "_attn_implementation")], ast.Constant(name)) if (
                name == OWN_ATTENTION
            ):
                self.visit(owner)
            case _:
                self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS:
                self.report(node, f"{keyword.arg}: {KEYWORDS[keyword.arg]}")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in ("from_config", "generate") and any(keyword.arg is None for keyword in node.keywords):
            self.report(node, f".{name}: ** hides its options")
        skipped: list[ast.expr] = []  # parts of the call that have been read, or need not be
        match node:
            case ast.Call(func=ast.Name("getattr" | "hasattr"), args=[_, ast.Constant(str(attribute)), *_]):
                skipped = [node.func, *node.args[:2]]
                if name == "getattr":
                    self.visit(ast.copy_location(ast.Attribute(node.args[0], attribute, ast.Load()), node))
            case ast.Call(func=ast.Name("setattr"), args=[_, ast.Constant(str(attribute)), _]):
                self.visit(ast.copy_location(ast.Attribute(node.args[0], attribute, ast.Store()), node))
                skipped = [node.func, *node.args[:2]]
            case ast.Call(
                func=ast.Attribute(ast.Call(ast.Name("vars"), [of]), "get"), args=[ast.Constant(str(key)), *_]
            ):
                self.visit(ast.copy_location(ast.Attribute(of, key, ast.Load()), node))
                skipped = [node.func, node.args[0]]
            case ast.Call(func=ast.Name("type"), args=[ast.expr() as value], keywords=[]) if id(node) in self.classes:
                skipped = [node.func, *([value] if isinstance(value, ast.Starred) else [])]
            case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, ast.Name("type")]):
                skipped = [node.args[1]]
            case ast.Call(func=ast.Attribute(ast.Constant(str(text)), "format")) if _plain(text):
                skipped = [node.func]
            case ast.Call() if name in LOADERS:
                skipped = [node.func]
                function = self.functions[-1] if self.functions else None
                if not of_the_checkpoint(node, function, function in self.methods):
                    named = name == "from_pretrained" and node.args and isinstance(node.args[0], ast.Constant)
                    why = f"loads another repository, {ast.unparse(node.args[0])}" if named else f"{name}: {UNKNOWN}"
                    self.report(node, why)
                if isinstance(node.func, ast.Attribute):
                    self.visit(node.func.value)
        for part in (node.func, *node.args, *node.keywords):
            if part not in skipped:
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str):
            return
        if text in TEXTS:
            self.report(node, f"{text}: {TEXTS[text]}")
        elif "loaded_from" in text:  # a text may name several fields
            self.report(node, f"{text!r}: {TEXTS['loaded_from']}")
        elif text in REASONS and text.startswith("__"):
            self.report(node, f"{text}: {REASONS[text]}")
        elif REPOSITORY.fullmatch(text):
            self.report(node, f"{text!r}: may be the name of another repository")
        elif OUTSIDE.fullmatch(text):
            self.report(node, f"{text!r}: may be a file outside of the repository")
        elif "(" in text:
            self.code_in_text(node, text)

    def code_in_text(self, node: ast.Constant, text: str) -> None:
        """Read a text as code if it contains a call, because libraries run the texts of annotations."""
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for inner in ast.walk(tree):
            if isinstance(inner, ast.expr):
                ast.copy_location(inner, node)
            if isinstance(inner, ast.Name):
                self.unbound.add(inner.id)
        self.visit(tree)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if not isinstance(part, ast.Constant):  # a piece of a text
                self.visit(part)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id == "type"):
            self.visit(node.value)
        self.visit(node.slice)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.attributes(node, node.kwd_attrs)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        libraries = {bound for bound, _ in self.imports[self.file]}
        for keyword in node.keywords:
            module, _, name = f".{ast.unparse(keyword.value)}".rpartition(".")
            known = {f"{one}.{name}" for one in self.imported.get(module[1:], ())} | self.imported.get(name, set())
            if keyword.arg in (None, "metaclass") and "abc.ABCMeta" not in known:
                self.report(node, f"metaclass: {CALLED['type']}")
        for statement in own_nodes(node):
            if isinstance(statement, ast.AnnAssign) and not is_type(statement.annotation, self.untyped, libraries):
                self.report(
                    statement, f"{ast.unparse(statement.annotation)}: an annotation that may be text, run as code"
                )
        for statement in node.body:
            match statement:
                case ast.AnnAssign(ast.Name(name), value=value) if value and not isinstance(value, ast.Constant):
                    self.assignment(statement, name)
                case ast.Assign(targets=targets):
                    for target in targets:
                        self.assignment(statement, target.id if isinstance(target, ast.Name) else "")
        self.generic_visit(node)

    def visit_FunctionDef(self, node: Function) -> None:
        if node.name in REASONS and node.name.startswith("__"):
            self.report(node, f"{node.name}: {REASONS[node.name]}")
        if node.name == "loaded_from":  # a property
            self.assignment(node, node.name)
        if node.name in PLACED and any(ast.unparse(one) != "classmethod" for one in node.decorator_list):
            self.report(node, f"{node.name}: {UNKNOWN}")
        self.functions.append(node)
        self.annotations(
            node.returns, *(argument.annotation for argument in ast.walk(node.args) if isinstance(argument, ast.arg))
        )
        for part in (*node.args.defaults, *node.args.kw_defaults, *node.decorator_list, *node.body):
            if part:
                self.visit(part)
        self.functions.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.annotations(node.annotation)
        match node:
            case ast.AnnAssign(ast.Name("loaded_from"), value=ast.Constant(None)):
                return  # the model was not loaded
        for part in filter(None, (node.target, node.value)):
            self.visit(part)

    def annotations(self, *nodes: ast.expr | None) -> None:
        self.annotation = True
        for node in filter(None, nodes):
            self.visit(node)
        self.annotation = False

    visit_AsyncFunctionDef = visit_FunctionDef


def _plain(text: str) -> bool:
    """Return whether a format reads no attributes and no items of what it formats."""
    try:
        fields = [field or "" for _, field, _, _ in string.Formatter().parse(text)]
    except ValueError:
        return False
    return not any(re.search(r"[.\[]", field) for field in fields)
