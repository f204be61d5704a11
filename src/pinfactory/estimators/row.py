"""Who decided about a row, why, and what would have made it another expert's case."""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.base import is_classifier

from pinfactory.formats import quantity
from pinfactory.tables import Column

from .attributions import attribute, user_values
from .committee import Committee
from .conditions import shortest
from .explain import encoding_of
from .table_learner import select_asked

# Values of a number that are tried, first over its range and then around the nearest.
GRID = 33
# A change of category is as far as a number's change by one deviation.
CATEGORY_DISTANCE = 1.0
# Columns that are printed.
MOST_PRINTED = 8


class Contribution(NamedTuple):
    """What one column of a row contributes to the answer."""

    column: str
    value: str
    amount: float


class Change(NamedTuple):
    """A change of one column that makes a row another expert's case."""

    column: str
    value: str
    becomes: str
    expert: int


@dataclass(frozen=True)
class RowExplanation:
    """One row; print it."""

    answer: str  #: the predicted label, or numbers
    probabilities: dict[str, float]  #: of every class; empty for numbers
    deviation: list[float]  #: how sure the answer is, for numbers; empty for classes
    #: Who decided, and p(m|x).
    expert: int
    probability: float
    others: dict[int, float]  #: p(m|x) of all other experts above one percent
    #: What the contributions are about, what is said of an average row, and what each column adds;
    #: the largest first. Empty for other than linear experts.
    about: str
    base: float
    contributions: tuple[Contribution, ...]
    #: The nearest change of one column that would make it another expert's case, if any.
    change: Change | None

    def __str__(self) -> str:
        lines = [f"answer   {self.answer}"]
        if self.probabilities:
            shares = ", ".join(f"{name} {p:.0%}" for name, p in self.probabilities.items())
            lines[0] += f" ({shares})"
        else:
            lines[0] += f" ± {' ± '.join(quantity(d, 2) for d in self.deviation)}"
        others = ", ".join(f"expert {m}: {p:.0%}" for m, p in self.others.items())
        alone = f"by expert {self.expert} ({self.probability:.0%})"
        lines.append(f"decided  {alone}; {others}" if others else f"decided  {alone}")
        if self.contributions:
            lines.append(f"why      {self.about}: {quantity(self.base, 4)} for an average row")
            shown, rest = self.contributions[:MOST_PRINTED], self.contributions[MOST_PRINTED:]
            rows = [(f"{c.column} = {c.value}"[:52], _signed(c.amount)) for c in shown]
            if rest:
                rows.append(("all other columns", _signed(sum(c.amount for c in rest))))
            total = self.base + sum(c.amount for c in self.contributions)
            rows.append(("together", quantity(total, 4)))
            width = max(len(name) for name, _ in rows)
            lines += [f"         {name:<{width}}  {amount:>14}" for name, amount in rows]
        lines.append(f"change   {self._change()}")
        return "\n".join(lines)

    __repr__ = __str__

    def _change(self) -> str:
        if self.change is None:
            return "no change of a single column would make it another expert's case"
        column, value, becomes, expert = self.change
        return f"expert {expert} would decide if {column} were {becomes} (it is {value})"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{quantity(value, 4)}"


def explain_row(committee: Committee, X: Any) -> RowExplanation:
    """Explain the answer to the only row of `X`."""
    numbers = committee._numbers(X)
    if len(numbers) != 1:
        raise ValueError(f"`X` must have one row, but has {len(numbers)}: give X[i : i + 1].")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not seen in fit")  # said above
        return _explained(committee, X, numbers)


def _explained(committee: Committee, X: Any, numbers: Float[np.ndarray, "1 d"]) -> RowExplanation:
    share = committee._ask_numbers(select_asked, numbers)[0]
    expert = int(share.argmax())
    others = {int(m): float(share[m]) for m in np.argsort(-share)[1:] if share[m] > 0.01}
    if is_classifier(committee):
        probs = committee.predict_proba(X)[0]
        answer = str(committee.classes_[probs.argmax()])
        shares = {str(c): float(p) for c, p in zip(committee.classes_, probs, strict=True)}
        deviation, output = [], 0 if len(probs) == 2 else int(probs.argmax())
        about = f"log-odds of {committee.classes_[1 if len(probs) == 2 else output]}"
    else:
        mean, std = (np.atleast_1d(part[0]) for part in committee.predict(X, return_std=True))
        answer, shares = ", ".join(quantity(v, 4) for v in mean), {}
        deviation, output, about = std.tolist(), 0, "expected value"
    try:
        found = attribute(committee, X)
    except ValueError:  # experts without weights
        base, parts = 0.0, []
    else:
        used = [c for c in encoding_of(committee).columns if c.kind != "left out"]
        values = found.values[0].reshape(len(found.feature_names), -1)[:, output]
        base = float(np.atleast_1d(found.base_values[0])[output])
        parts = [
            Contribution(column.label, column.shown(value), float(amount))
            for column, value, amount in zip(used, found.data[0], values, strict=True)
        ]
    parts.sort(key=lambda part: -abs(part.amount))
    return RowExplanation(
        answer=answer,
        probabilities=shares,
        deviation=deviation,
        expert=expert,
        probability=float(share[expert]),
        others=others,
        about=about,
        base=base,
        contributions=tuple(parts),
        change=nearest_change(committee, numbers[0], expert, _own_values(committee, X, numbers)),
    )


def _own_values(committee: Committee, X: Any, numbers: np.ndarray) -> dict[int, Any]:
    """Return the user's value of every column in use, by its position."""
    encoding = encoding_of(committee)
    used = [i for i in range(len(encoding.columns)) if encoding.places(i)]
    return dict(zip(used, (v[0] for v in user_values(committee, X, numbers)), strict=True))


def nearest_change(
    committee: Committee, row: Float[np.ndarray, " d"], expert: int, own: dict[int, Any]
) -> Change | None:
    """Return the nearest change of one column after which another expert decides.

    `own` are the user's values of the row, by position of the column.
    """
    encoding, scale = encoding_of(committee), committee.scaler_.scale_
    mean = committee.scaler_.mean_
    best: tuple[float, int, Any, int] | None = None

    def ask(index: int, values: list[Any]) -> np.ndarray:
        places, column = encoding.places(index), encoding.columns[index]
        rows = np.tile(row, (len(values), 1))
        rows[:, places] = [column.code(value) for value in values]
        return committee._ask_numbers(select_asked, rows).argmax(axis=1)

    for index, column in enumerate(encoding.columns):
        places = encoding.places(index)
        if not places:
            continue
        now = row[places[0]]
        values = _candidates(column, now, mean[places[0]], scale[places[0]])
        owners = ask(index, values)
        away = [
            CATEGORY_DISTANCE if column.kind != "number" else abs(float(v) - now) / scale[places[0]]
            for v in values
        ]
        for value, owner, distance in zip(values, owners.tolist(), away, strict=True):
            if owner != expert and (best is None or distance < best[0]):
                best = (distance, index, value, owner)
    if best is None:
        return None
    _, index, value, owner = best
    column, now = encoding.columns[index], float(row[encoding.places(index)[0]])
    is_now = own[index]
    if column.kind != "number":
        return Change(column.label, column.shown(is_now), column.shown(value), owner)
    value, owner = _refined(ask, index, column, now, float(value), expert, owner)
    if column.part or np.isnan(is_now):
        return Change(column.label, column.shown(is_now), column.compared(value), owner)
    # With as many digits as tell both apart.
    doubt = abs(value - now) / 20
    is_now = now if column.whole else shortest(now - doubt, now + doubt)
    return Change(column.label, column.compared(is_now), column.compared(value), owner)


def _candidates(column: Column, now: float, mean: float, scale: float) -> list[Any]:
    if column.kind == "category":
        return list(column.indicated)
    if column.kind == "boolean":
        return [float(now <= 0.5)]
    known = column.high > column.low
    low, high = (column.low, column.high) if known else (mean - 3 * scale, mean + 3 * scale)
    values = np.linspace(low, high, GRID)
    return list(np.round(values) if column.whole and known else values)


def _refined(
    ask: Any, index: int, column: Column, now: float, value: float, expert: int, owner: int
) -> tuple[float, int]:
    """Return the value nearest to `now`, on a fine grid, at which another expert decides."""
    values = np.linspace(now, value, GRID)
    if column.whole:
        values = np.floor(values) if value < now else np.ceil(values)
    owners = ask(index, list(values))
    other = np.flatnonzero(owners != expert)
    if not len(other):
        return value, owner
    nearest, owner = float(values[other[0]]), int(owners[other[0]])
    if column.whole:
        return nearest, owner
    short = shortest(*sorted((nearest, nearest + (value - now) / (GRID - 1))))
    decides = int(ask(index, [short])[0])
    return (nearest, owner) if decides == expert else (short, decides)
