"""Where each expert applies and what it says, as plain values and text: `Rules`."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pinfactory.formats import decimals, quantity, wrapped

from .weights import Weight

if TYPE_CHECKING:
    import pandas

# Columns of a rule that are printed, and levels of a category.
MOST_PRINTED = 5
# Columns of a gate that are printed; of gates with many more, these would say little.
MOST_GATED, MANY_GATED = 3, 10
# Longest name of a column that has the weights beside it, not after it.
MOST_NAME = 30


class Gate(NamedTuple):
    """One gate of a tree, on the way to an expert: Σ weight × feature > threshold, or ≤.

    Attributes
    ----------
    features, weights
        Names of the features, the most important first, and their weights in the user's units.
        Those of a category's levels are differences from their average. The sum less the threshold
        is the log-odds of the side above.
    threshold
        What the sum is compared with.
    above
        Which side the expert is on.
    comparison
        The same as a comparison, for readers, if the gate looks at one column; else "".
    """

    features: tuple[str, ...]
    weights: tuple[float, ...]
    threshold: float
    above: bool
    comparison: str

    def text(self, most: int | None = None) -> str:
        """Return it for readers, with so many of the features."""
        if self.comparison:
            return self.comparison
        total = ""
        for name, weight in list(zip(self.features, self.weights, strict=True))[:most]:
            joint = (" + ", " − ") if total else ("", "−")
            total += f"{joint[int(weight < 0)]}{quantity(abs(weight), 4)} [{name}]"
        if most is not None and len(self.features) > most:
            total += f" + {len(self.features) - most} more"
        return f"{total} {'>' if self.above else '≤'} {quantity(self.threshold, 4)}"


@dataclass(frozen=True)
class Rule:
    """One expert.

    Attributes
    ----------
    expert, share, bits
        Its number, p(m), and I(X;Y|M=m).
    where, asked, fidelity
        A short condition for the rows that are its own, the columns it asks about, and how well it
        tells these rows (F1 score).
    path, path_fidelity
        With a tree as selector, the exact gates on the way to the expert, in the user's columns and
        units, and how well passing all of them tells its rows: 1 but where gates are so soft that
        a row's most probable expert is not the one its gates lead to. Else empty, and 0.
    exact
        Whether the condition is that path, which it is where every gate looks at one column.
    rows, matched
        Rows that are its own, and rows that the condition holds for.
    typical
        The mean of its answers to its own rows: a number for each target, or the probability of
        each class.
    weights
        What changes its answers, the most important column first; empty for other than linear
        experts.
    rest, little
        The standard deviation of what all columns, all but the first, all but the first two and so
        on change its answers to its own rows, and which of these is too little to be told.
    score
        How good its answers are on its own rows: R² (worst target), or the share of right ones.
    """

    expert: int
    share: float
    bits: float
    where: str
    asked: tuple[str, ...]
    fidelity: float
    path: tuple[Gate, ...]
    path_fidelity: float
    exact: bool
    rows: int
    matched: int
    typical: dict[str, float]
    weights: tuple[Weight, ...]
    rest: tuple[float, ...]
    little: float
    score: float

    def columns(self) -> dict[tuple[str, str], list[Weight]]:
        """Return the weights grouped by column and output, the most important first."""
        grouped: dict[tuple[str, str], list[Weight]] = {}
        for weight in self.weights:
            grouped.setdefault((weight.column, weight.output), []).append(weight)
        return grouped

    def n_told(self, most: int = MOST_PRINTED) -> int:
        """Return how many columns are worth telling, one at least: the others change little."""
        enough = next((i for i, rest in enumerate(self.rest) if rest <= self.little), most)
        return min(most, max(1, enough), len(self.columns()))

    def left(self, told: int) -> str:
        """Describe what is not told: how many columns, and what they change; "" if nothing."""
        more = len(self.columns()) - told
        return f"{more} more, together ± {quantity(self.rest[told], 2)}" if more > 0 else ""

    def doubt(self) -> str:
        """Say how many weights are clear if the rows are fewer than two for each; else "".

        Each answer (of several classes or targets) has weights of its own.
        """
        n_weights = max(Counter(weight.output for weight in self.weights).values(), default=0)
        if self.rows >= 2 * n_weights:
            return ""
        n_clear = sum(abs(weight.value) > 2.0 * weight.error for weight in self.weights)
        few = f"{self.rows:,} rows are few for {n_weights:,} weights"
        several = f"{n_clear:,} are" if n_clear > 1 else "1 is" if n_clear else "none is"
        return f"{few}: {several} beyond two standard errors"

    def says(self, most: int = MOST_PRINTED) -> list[tuple[str, str]]:
        """Return the most important columns with what they change, as text."""
        lines = []
        for (column, output), weights in list(self.columns().items())[:most]:
            name = f"{column} → {output}" if output and len(self.typical) > 2 else column
            if weights[0].level:
                shown = sorted(weights, key=lambda w: -abs(w.value) * w.rows**0.5)[:most]
                shown.sort(key=lambda w: -w.value)
                told = "; ".join(f"{w.level} {w.text()}" for w in shown)
                lines.append((name, told + ("; …" if len(weights) > len(shown) else "")))
            else:
                lines.append((name, weights[0].text()))
        return lines


@dataclass(frozen=True)
class Rules:
    """A table with a rule for each expert in use; print it, or take its `frame`.

    Attributes
    ----------
    rules
        The rules, the busiest expert first.
    n_rows
        Rows on which they were measured.
    measure
        What their score is: "R²" or "accuracy".
    unit
        What weights are in: the target's own units, or log-odds.
    """

    rules: tuple[Rule, ...]
    n_rows: int
    measure: str
    unit: str

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, index: int) -> Rule:
        return self.rules[index]

    @property
    def n_numbers(self) -> int:
        """How many numbers a reader of everything reads: weights, constants, and those of gates.

        A gate that is a comparison has one. A selector that is no tree has no gates to read.
        """
        gates = {gate[:3]: gate for rule in self.rules for gate in rule.path}
        of_gates = (1 if g.comparison else len(g.weights) + 1 for g in gates.values())
        return sum(len(rule.weights) + 1 for rule in self.rules) + sum(of_gates)

    def frame(self) -> "pandas.DataFrame":
        """Return a pandas frame with one row for each rule."""
        import pandas as pd

        chosen = ("expert", "where", "fidelity", "rows", "share", "bits", "score")
        rows = [{n: getattr(rule, n) for n in chosen} for rule in self.rules]
        for row, rule in zip(rows, self.rules, strict=True):
            row["path"] = " and ".join(gate.text() for gate in rule.path)
            row["says"] = "; ".join(f"{name} {text}" for name, text in rule.says(rule.n_told()))
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        parts = [self._text(rule) for rule in self.rules]
        return "\n\n".join(parts)

    __repr__ = __str__

    def _text(self, rule: Rule) -> str:
        head = (
            f"expert {rule.expert}: {rule.share:.0%} of the work, {rule.bits:.2f} bits, "
            f"{self.measure} {decimals(rule.score, 2)} on its {rule.rows:,} rows"
        )
        exactly = "exactly, " if rule.exact else ""
        fit = f"({exactly}fidelity {rule.fidelity:.2f}, {rule.matched:,} of {self.n_rows:,} rows)"
        lines = [head, *wrapped("  where  ", f"{rule.where} {fit}")]
        for text in () if rule.exact else _gates(rule.path):
            lines += wrapped("  gate   ", text)
        # Classes may be numbers.
        mark = ":" if self.measure == "accuracy" else ""
        about = ", ".join(
            f"{name}{mark} {quantity(value, 3)}".strip() for name, value in rule.typical.items()
        )
        # An answer has the unit of its mean; a probability changes in another one.
        unit = f" {self.unit}" if self.measure == "accuracy" else ""
        lines += wrapped("  says   ", f"{about} on average, and{unit} for each unit or category")
        n_told = rule.n_told()
        width = max((len(name) for name, _ in rule.says(n_told)), default=0)
        for name, told in rule.says(n_told):
            if width <= MOST_NAME:
                lines += wrapped(f"         {name:<{width}}  ", told)
            else:
                lines += wrapped("         ", f"{name}  {told}", deeper=2)
        more = rule.left(n_told)
        lines += [f"         … and {more}"] if more else []
        return "\n".join(lines + (wrapped("  doubt  ", rule.doubt()) if rule.doubt() else []))

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for a file."""
        rules = [
            asdict(rule)
            | {"weights": [tuple(w) for w in rule.weights], "path": [tuple(g) for g in rule.path]}
            for rule in self
        ]
        rest = {"n_rows": self.n_rows, "measure": self.measure, "unit": self.unit}
        return {"rules": rules} | rest

    @classmethod
    def from_plain(cls, values: Any) -> "Rules":
        """Return the rules of plain values from a file."""
        rules = tuple(
            Rule(
                **rule
                | {"weights": tuple(Weight(*w) for w in rule["weights"])}
                | {"path": tuple(Gate(*g) for g in rule["path"])}
                | {"rest": tuple(rule["rest"])}
            )
            for rule in values["rules"]
        )
        if any(rule.weights and len(rule.rest) <= len(rule.columns()) for rule in rules):
            raise ValueError("a rule must say what is left after each of its columns")
        rest = {name: value for name, value in values.items() if name != "rules"}
        made = cls(rules, **rest)
        str(made)  # what cannot be printed is not sound
        return made


def _gates(path: tuple[Gate, ...]) -> list[str]:
    """Return the gates for readers; many gates of many features in one line."""
    n_features = max((len(gate.features) for gate in path if not gate.comparison), default=0)
    if len(path) > 1 and n_features > MANY_GATED:
        return [f"{len(path)} splits of the tree, each by {n_features} features (`rule.path`)"]
    return [gate.text(MOST_GATED) for gate in path]
