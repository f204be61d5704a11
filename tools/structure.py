"""Print how the source is built: counts that should stay small, and where each comes from.

python tools/structure.py          the table
python tools/structure.py --fits   and the files that four fits pass through
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "pinfactory"
# An arrow may point from a package to those behind it, never back.
LAYERS = (
    ("cli", "__main__"),
    ("experiments", "report"),
    ("baselines", "paper"),
    ("estimators", "meta", "rl", "density", "sweep"),
    ("base",),
    (
        "callbacks",
        "settings",
        "persistence",
        "networks",
        "plotting",
        "recurrent",
        "vision",
        "tables",
    ),
    ("formats", "lazy"),
    ("core",),
)
LONGEST_FUNCTION, LONGEST_FILE = 60, 300
# Why some files are longer than the rest may be.
_REFERENCE = "without docstrings shorter: a class with many settings, each explained"
WHY_LONG = {
    "baselines/rl_gradient.py": "MAML and ProMP are one algorithm but for a few lines",
    "core/training.py": "the loop, its compiled chunk, and what its observers see of both",
    "estimators/committee.py": _REFERENCE,
    "estimators/curve.py": _REFERENCE,
    "estimators/fitting.py": "one class, each method of which needs settings and problem, and "
    "the score of held-out rows that it trains by",
    "estimators/linear_tree.py": "a tree, its leaves, and how a committee begins as one",
    "estimators/mixture.py": _REFERENCE,
    "estimators/regressor.py": _REFERENCE,
    "estimators/table_learner.py": "one class: what both committees do from samples to a state",
    "estimators/splits.py": "one class: growth, and the search for the best split",
    "estimators/table.py": "from samples to rows, what all fits begin with, in one place",
    "experiments/benchmarks/rooflines.py": "one benchmark; five loops need five set-ups",
    "meta/learner.py": _REFERENCE,
    "meta/parameters.py": "thirty settings of two classes, each explained",
    "plotting/_partition.py": _REFERENCE,
    "rl/agent.py": _REFERENCE,
    "rl/meta/agent.py": _REFERENCE,
    "rl/meta/learner.py": "one step of learning, whose four parts share its state",
}


@cache
def sources() -> list[tuple[Path, ast.Module]]:
    """Return every source file with its syntax tree."""
    return [
        (path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
    ]


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """Yield what a file imports from the library, as parts of dotted names from its root on."""
    package = path.parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "pinfactory":
                    yield tuple(parts[1:])
        if not isinstance(node, ast.ImportFrom):
            continue
        module = (node.module or "").split(".") if node.module else []
        if node.level:
            base = [*package[: len(package) - node.level + 1], *module]
        elif module and module[0] == "pinfactory":
            base = module[1:]
        else:
            continue
        for alias in node.names:
            yield (*base, alias.name)


def private_imports() -> list[str]:
    """Return names with a leading underscore that another package imports."""
    found = []
    for path, tree in sources():
        package = path.parent.parts
        for name in imports(path, tree):
            hidden = [i for i, part in enumerate(name) if re.match(r"_(?!_)", part)]
            if hidden and name[: hidden[0]] != package:
                found.append(f"{path}: {'.'.join(name)}")
    return found


def backward_arrows() -> list[str]:
    """Return imports that point from a layer to one in front of it."""
    layer = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    found = []
    for path, tree in sources():
        home = path.parts[0].removesuffix(".py")
        for name in imports(path, tree):
            if name and home in layer and layer.get(name[0], 99) < layer[home]:
                found.append(f"{path}: {'.'.join(name)}")
    return found


def matches(pattern: str, where: str = "") -> list[str]:
    """Return the lines of the source that a pattern matches, below one folder if given."""
    found = []
    for path in sorted((ROOT / where).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def long_functions() -> list[str]:
    """Return functions longer than a screen."""
    return [
        f"{path}: {node.name} ({node.end_lineno - node.lineno + 1})"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node) > LONGEST_FUNCTION
    ]


def _docstring_lines(node: ast.FunctionDef) -> int:
    first = node.body[0]
    told = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (first.end_lineno or 0) - first.lineno + 1 if told else 0


def long_files() -> dict[str, int]:
    """Return files longer than a few screens, with their lengths."""
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path, _ in sources()}
    return {path: n for path, n in lengths.items() if n > LONGEST_FILE}


def counts() -> dict[str, list[str]]:
    """Return every count with the places it is made of."""
    return {
        "private names across packages": private_imports(),
        "arrows that point back": backward_arrows(),
        "gradient steps": matches(r"(?i)optimi[sz]er\.update\(|ADAM\.update\("),
        "states with an optimiser": matches(r": (tuple\[)?optax\.OptState"),
        "training loops": matches(r"callback\.chunk\(", "core"),
        "information classes": matches(r"^class \w*Information\b"),
        "episode loops": matches(r"^def run_episodes\("),
        "functions over a screen": long_functions(),
        "files over 300 lines": [
            f"{path} ({n}): {WHY_LONG.get(path, 'no reason')}" for path, n in long_files().items()
        ],
    }


def trace(function) -> list[str]:
    """Return the library's files whose functions run in a call, in the order of first entry."""
    seen: dict[str, None] = {}

    def watch(frame, event, _) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT)):
            seen.setdefault(str(Path(name).relative_to(ROOT)))

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(seen)


def fits() -> dict[str, list[str]]:
    """Return the files that the `fit` of four learners passes through."""
    import numpy as np

    import pinfactory
    from pinfactory.meta.tasks import Sinusoids

    x = np.random.default_rng(0).normal(size=(60, 2))
    classifier = pinfactory.SpecialistClassifier(2, max_iter=100, random_state=0)
    regressor = pinfactory.SpecialistRegressor(2, max_iter=100, random_state=0)
    mixture = pinfactory.SpecialistMixture(2, random_state=0)
    meta = pinfactory.MetaSpecialistRegressor(2, max_iter=2, random_state=0)
    return {
        "SpecialistClassifier": trace(lambda: classifier.fit(x, x[:, 0] > 0)),
        "SpecialistRegressor": trace(lambda: regressor.fit(x, x[:, 0])),
        "SpecialistMixture": trace(lambda: mixture.fit(x)),
        "MetaSpecialistRegressor": trace(lambda: meta.fit(Sinusoids())),
    }


def main() -> None:
    """Print the counts, and on request the traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", action="store_true", help="trace four fits (takes a minute)")
    parser.add_argument("--places", action="store_true", help="list what each count is made of")
    options = parser.parse_args()
    lines = sum(len((ROOT / path).read_text().splitlines()) for path, _ in sources())
    print(f"{'lines in src':<32}{lines:>8,}")
    for name, places in counts().items():
        print(f"{name:<32}{len(places):>8}")
        for place in places if options.places else ():
            print(f"    {place}")
    if options.fits:
        for name, files in fits().items():
            print(f"\n{name}: {len(files)} files")
            print(*(f"    {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
