"""A committee with a tree as selector and linear experts as one SQL query."""

from itertools import pairwise

import numpy as np
from sklearn.base import is_classifier

from pinfactory.networks import FARTHEST_SELECTED, SoftTree
from pinfactory.tables import DAYS, MISSING, OF_TEXT, OTHER, Column, Encoding

from .committee import Committee
from .explain import encoding_of, require_all_asked, standard_answers
from .table_learner import FARTHEST

# Beyond this a logistic function is 0 or 1, and its exponential may be too large for a database.
FARTHEST_GATE = 50.0


def to_sql(committee: Committee, table: str) -> str:
    """Return a query in standard SQL (and EXP) for the answers to the rows of a table.

    Numbers have 9 digits, as many as single precision has.
    """
    if not isinstance(table, str) or not table:
        raise ValueError(f"`table` must be the name of a table, but got {table!r}.")
    hierarchy, encoding = committee.state_.model, encoding_of(committee)
    require_all_asked(committee, "to_sql")
    tree = hierarchy.selector
    if not isinstance(tree, SoftTree):
        raise ValueError(f'`to_sql` needs selector="tree", but got {committee.selector!r}.')
    timed = [c.name for c in encoding.columns if c.part or c.note == DAYS or c.written]
    if timed:
        raise ValueError(
            "`to_sql` cannot take dates, durations and numbers in text apart in every database: "
            f"fit without {timed[0]!r}, or with columns of numbers that say the same."
        )
    free = np.flatnonzero(np.asarray(hierarchy.available)).tolist()
    steps = _steps(committee, encoding, tree, free)
    source, chain = f'"{_quoted(table)}"', []
    for number, parts in enumerate(steps):
        named = ", ".join(f"{text} AS {name}" for name, text in parts.items())
        chain.append(f"s{number} AS (SELECT {'*, ' if number else ''}{named} FROM {source})")
        source = f"s{number}"
    shares = ", ".join(f'p{m} AS "p(expert {m})"' for m in free)
    with_steps = "WITH " + ",\n".join(chain)
    return f"{with_steps}\nSELECT {_answers(committee, free)}, {shares} FROM {source}"


def _steps(
    committee: Committee, encoding: Encoding, tree: SoftTree, free: list[int]
) -> list[dict[str, str]]:
    """Return what is computed one after the other, by name: inputs, gates, shares, answers."""
    weight, bias = standard_answers(committee)
    mean, scale = committee.scaler_.mean_, committee.scaler_.scale_
    features = [text for column in encoding.columns for text in _of_column(column)]
    inputs = {
        f"x{i}": f"({text} - {_number(m)}) / {_number(s)}"
        for i, (text, m, s) in enumerate(zip(features, mean, scale, strict=True))
    }
    # A selector looks no farther than a few deviations; an indicator never is as far.
    seen = [
        name if indicator else _clip(name, FARTHEST_SELECTED)
        for name, indicator in zip(inputs, encoding.indicators, strict=True)
    ]
    gates = zip(np.asarray(tree.weight, float), np.asarray(tree.bias, float), strict=True)
    arguments = {f"a{i}": _line(w, b, seen) for i, (w, b) in enumerate(gates)}
    ends, beyond = _ends(committee, list(inputs))
    inside = [name if f"c0_{i}" not in ends else f"c0_{i}" for i, name in enumerate(inputs)]
    arguments |= beyond | {
        f"y{m}_{o}": _line(weight[m, o], bias[m, o], inside)
        for m in free
        for o in range(weight.shape[1])
    }
    sides = {
        f"g{i}": f"1.0 / (1.0 + EXP(-({_clip(f'a{i}', FARTHEST_GATE)})))"
        for i in range(len(tree.bias))
    }
    paths = {f"q{m}": _path(np.asarray(tree.path)[m]) for m in free}
    total = " + ".join(paths)
    shares = {f"p{m}": f"q{m} / ({total})" for m in free}
    return [inputs, *([ends] if ends else []), arguments, sides, paths, shares]


def _ends(committee: Committee, names: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return inputs no farther than the ends of each range, and what is added to every output."""
    if (known := committee._extension) is None:
        return {}, {}
    ending = np.flatnonzero(known.low[0] > -FARTHEST).tolist()
    ends = {
        f"c{k}_{i}": _clip(names[i], high[i], low[i])
        for k, (low, high) in enumerate(zip(known.low, known.high, strict=True))
        for i in ending
    }
    points = [[f"c{k}_{i}" for i in ending] for k in range(len(known.low))]
    points.append([names[i] for i in ending])
    outside = [
        f"({outer} - {inner})"
        for inside, farther in pairwise(points)
        for inner, outer in zip(inside, farther, strict=True)
    ]
    slope = known.slope[:, :, ending].swapaxes(0, 1).reshape(known.slope.shape[1], -1)
    return ends, {f"e{o}": _line(s, 0.0, outside) for o, s in enumerate(slope)}


def _answers(committee: Committee, free: list[int]) -> str:
    """Return the expected values, or the probability of every class."""
    found = []
    if not is_classifier(committee):
        target = committee.target_scaler_
        for o, (mean, scale) in enumerate(zip(target.mean_, target.scale_, strict=True)):
            own = [f"p{m} * y{m}_{o}" for m in free]
            total = " + ".join([*own, f"e{o}"] if committee._extension is not None else own)
            name = "prediction" if len(target.mean_) == 1 else f"prediction {o}"
            found.append(f'{_number(mean)} + {_number(scale)} * ({total}) AS "{name}"')
        return ", ".join(found)
    n_classes = len(committee.classes_)
    for k, label in enumerate(committee.classes_):
        parts = []
        for m in free:
            # Two classes have one log-odds; of several, the logits are those of a softmax.
            logits = [f"y{m}_{o}" for o in range(n_classes)]
            logits = ["0.0", f"y{m}_0"] if n_classes == 2 else logits
            terms = (f"EXP({_clip(f'({other} - {logits[k]})', FARTHEST_GATE)})" for other in logits)
            parts.append(f"p{m} / ({' + '.join(terms)})")
        found.append(f'{" + ".join(parts)} AS "p({_quoted(str(label))})"')
    return ", ".join(found)


def _of_column(column: Column) -> list[str]:
    name = f'"{_quoted(column.name)}"'
    value = f"COALESCE({name}, {_number(column.fill)})"
    if column.kind == "boolean":
        gone = f"WHEN {name} IS NULL THEN {_number(column.fill)}"
        truth = f"{name} = {_text('True')}" if column.note == OF_TEXT else name
        value = f"CASE {gone} WHEN {truth} THEN 1.0 ELSE 0.0 END"
    gap = f"CASE WHEN {name} IS NULL THEN 1.0 ELSE 0.0 END"
    if column.kind != "category":
        return [value, gap][: len(column.feature_levels())]
    known = ", ".join(_text(level) for level in column.levels)
    found = []
    for level, share in zip(column.indicated, column.shares, strict=True):
        cases = [f"WHEN {name} = {_text(level)} THEN 1.0"]
        if level == MISSING:
            cases = [f"WHEN {name} IS NULL THEN 1.0", f"WHEN {name} IN ({known}) THEN 0.0"]
        elif level == OTHER:
            cases = [f"WHEN {name} IN ({known}) THEN 0.0", f"WHEN {name} IS NULL THEN 0.0"]
            cases = cases[:1] if not column.has_missing else cases
        else:
            cases.append(f"WHEN {name} IN ({known}) THEN 0.0")
            cases += [f"WHEN {name} IS NULL THEN 0.0"] if column.has_missing else []
        rest = "1.0" if level == OTHER else "0.0" if column.has_other else None
        found.append(f"CASE {' '.join(cases)} ELSE {rest or _number(share)} END")
    return found[1:] if len(found) == 2 else found


def _path(path: np.ndarray) -> str:
    """Return the probability of the way to a leaf."""
    sides = [f"g{i}" if side > 0 else f"(1.0 - g{i})" for i, side in enumerate(path) if side]
    return " * ".join(sides) or "1.0"


def _line(weight: np.ndarray, bias: float, names: list[str]) -> str:
    terms = (f"{_number(w)} * {name}" for w, name in zip(weight, names, strict=True) if w)
    return " + ".join([_number(bias), *terms])


def _clip(text: str, high: float, low: float | None = None) -> str:
    """Return a number no farther than two ends, by default as far on either side."""
    ends = [_number(end) for end in (high, -high if low is None else low)]
    above, below = f"{text} > {ends[0]} THEN {ends[0]}", f"{text} < {ends[1]} THEN {ends[1]}"
    return f"CASE WHEN {above} WHEN {below} ELSE {text} END"


def _number(value: float) -> str:
    text = f"{float(value):.9g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _text(level: str) -> str:
    return "'" + level.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return name.replace('"', '""')
