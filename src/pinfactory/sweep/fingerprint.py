"""Which code and which libraries a module's numbers depend on: its imports, followed statically."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# What draws, prints or describes results, or decides where they are computed, changes no number.
_NO_NUMBERS = (
    "pinfactory.plotting",
    "pinfactory.report",
    "pinfactory.cli",
    "pinfactory.experiments.experiment",
    "pinfactory.experiments.figures._pictures",
    "pinfactory.experiments.png",
    "pinfactory.experiments.style",
    "pinfactory.sweep",
)
_NO_NUMBERS_OUTSIDE = ("contourpy", "matplotlib", "tensorboard", "tqdm")


class Dependencies(NamedTuple):
    """What a module depends on."""

    modules: list[str]  # names of the other modules of its package and of pinfactory, sorted
    # Versions of all other libraries that these import and that are installed.
    libraries: dict[str, str]
    digest: str  # of the modules' code, without comments and docstrings


class _Source(NamedTuple):
    code: str
    imports: list[tuple[str, str | None]]  # module, and the name that is imported from it
    bindings: dict[str, tuple[str, str | None]]  # the same by the name they are bound to


def dependencies(module: str, names: Iterable[str]) -> Dependencies:
    """Follow the imports of a module, also those inside functions and for type checking.

    Of the module itself counts what `names` in it use. A name that a
    package's `__init__` only passes on is followed to the module that defines it: using one class
    of a package does not mean depending on all others. Other libraries count by their versions;
    modules that belong to none, such as those beside a script, by their code.
    """
    own = {module.partition(".")[0], "pinfactory"}
    if not _is_own(module, {"pinfactory"}):
        return Dependencies([], _versions(own - {"pinfactory"}), "")
    root = _source(module, tuple(names))
    found: set[str] = set()
    outside: set[str] = set()
    waiting = list(root.imports)
    while waiting:
        name, imported = waiting.pop()
        if not _is_own(name, own):
            outside.add(name.partition(".")[0])
            continue
        target = _defining(name, imported)
        if target is None or target in found or _draws(target):
            continue
        if not _is_own(target, own):
            outside.add(target.partition(".")[0])
            continue
        found.add(target)
        waiting += _source(target).imports
    modules = sorted(found - {module})
    digest = hashlib.sha256(root.code.encode())
    for name in modules:
        digest.update(f"{name}\n{_source(name).code}\n".encode())
    return Dependencies(modules, _versions(outside), digest.hexdigest())


def _is_own(module: str, own: set[str]) -> bool:
    package = module.partition(".")[0]
    if package in own:
        return True
    if package in sys.stdlib_module_names or _distributions(package):
        return False
    return _file(package) is not None


def _draws(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _NO_NUMBERS)


def _defining(module: str, name: str | None) -> str | None:
    """Return the module that defines what is imported; None if no file is found."""
    seen = set()
    while name is not None:
        below = f"{module}.{name}"
        if _file(below) is not None:
            return below
        file = _file(module)
        if file is None or file.name != "__init__.py" or (module, name) in seen:
            break
        seen.add((module, name))
        if name not in _source(module).bindings:
            break
        origin, name = _source(module).bindings[name]
        if origin.partition(".")[0] != module.partition(".")[0]:
            return origin
        module = origin
    return module if _file(module) is not None else None


def _root(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return Path(spec.origin).parent if spec is not None and spec.origin else None
    return Path(next(iter(spec.submodule_search_locations))).parent


def _file(module: str) -> Path | None:
    if module == "__main__":
        file = getattr(sys.modules[module], "__file__", None)
        return None if file is None else Path(file)
    root = _root(module.partition(".")[0])
    if root is None:
        return None
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def _source(module: str, names: tuple[str, ...] | None = None) -> _Source:
    file = _file(module)
    if file is None:
        raise ValueError(f"the source code of {module} is not found")
    status = file.stat()
    return _parse(module, file, names, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1024)
def _parse(
    module: str, file: Path, names: tuple[str, ...] | None, changed: int, size: int
) -> _Source:
    """Read a file, or what some names in it use; time and size tell that it has changed."""
    tree = _without_docstrings(ast.parse(file.read_bytes()))
    tree.body = [statement for statement in tree.body if not _is_main(statement)]
    if names is not None:
        # What binds no name, such as a call, may do anything; but workers never run a script.
        tree.body = _used(tree, names if module == "__main__" else (*names, ""))
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imports, bindings = [], {}
    for node in ast.walk(tree):
        for source, name, bound in _imported(node, package):
            imports.append((source, name))
            bindings[bound] = (source, name)
    return _Source(ast.dump(tree), imports, bindings)


def _used(tree: ast.Module, names: tuple[str, ...]) -> list[ast.stmt]:
    """Return the statements that some names are made of, directly or through others."""
    makers: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            makers.setdefault(name, []).append(statement)
    used: set[ast.stmt] = set()
    waiting = list(names)
    seen = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for statement in makers.get(name, []):
            used.add(statement)
            waiting += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return [_only(statement, seen) for statement in tree.body if statement in used]


def _bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement binds; an empty one if it binds none."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ] or [""]


def _only(statement: ast.stmt, names: set[str]) -> ast.stmt:
    """Return an import without unused names."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        statement.names = [
            alias
            for alias in statement.names
            if (alias.asname or alias.name.partition(".")[0]) in names
        ]
    return statement


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, str | None, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, None, alias.asname or alias.name
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")
        above = above[: len(above) + 1 - node.level] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            yield source, None if alias.name == "*" else alias.name, alias.asname or alias.name


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Docstrings of attributes are strings that stand alone, too.
            node.body = [x for x in node.body if not _is_text(x)] or [ast.Pass()]
    return tree


def _is_main(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__"`, which no import runs."""
    return isinstance(node, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _versions(packages: set[str]) -> dict[str, str]:
    found = {}
    for package in packages - set(_NO_NUMBERS_OUTSIDE) - sys.stdlib_module_names:
        # JAX computes with jaxlib, which is never imported by name.
        for name in _distributions(package) + (["jaxlib"] if package == "jax" else []):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return dict(sorted(found.items()))


def _distributions(package: str) -> list[str]:
    return sorted(set(_all_distributions().get(package, [])))


@cache
def _all_distributions() -> dict[str, list[str]]:
    return {key: list(value) for key, value in packages_distributions().items()}
