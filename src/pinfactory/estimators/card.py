"""A model card in Markdown: data, quality, rules, bits and limits of a committee."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from pinfactory.formats import decimals, quantity

from .committee import Committee
from .explain import encoding_of
from .tempering import TemperedPoint, tempered_curve

# Columns of a rule that a card shows.
MOST_COLUMNS = 4


def model_card(
    committee: Committee,
    X: Any = None,
    y: Any = None,
    *,
    source: str = "",
    notes: Sequence[str] = (),
    peers: Sequence[tuple[str, float, float]] = (),
) -> str:
    """Return a card about a committee that was fitted on a data frame.

    Parameters
    ----------
    committee
        The committee.
    X, y
        Rows that it has not seen, if there are any.
    source, notes
        Name of the table, and what a reader should know of how it was taken.
    peers
        Name, score and error of other models on the same rows.
    """
    judged = [] if X is None or y is None else tempered_curve(committee, X, y)
    sections = (
        _head(committee, source, notes),
        _quality(committee, judged, y, peers),
        _rules(committee),
        _bits(committee, judged),
        _columns(committee),
        _limits(committee),
        _settings(committee),
    )
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(committee: Committee, source: str, notes: Sequence[str]) -> str:
    target = getattr(committee, "target_name_", "") or "the target"
    kind = "classifier" if is_classifier(committee) else "regressor"
    unmeasured = "a table" if hasattr(committee, "encoding_") else "an array"
    n_rows = f"{committee.rules_.n_rows:,} rows" if hasattr(committee, "rules_") else unmeasured
    lines = [
        f"# Model card: {_safe(target)}",
        f"A committee of experts ({kind}) that predicts {_safe(target)} from "
        f"{len(encoding_of(committee).names)} columns, fitted to {n_rows}"
        + (f" of {_safe(source)}" if source else "")
        + f" with pinfactory {version('pinfactory')}.",
        _safe(committee.verdict_),
    ]
    if is_classifier(committee):
        lines.append("Classes: " + ", ".join(_safe(str(label)) for label in committee.classes_))
    return "\n\n".join([*lines, *(_safe(note) for note in notes)])


def _quality(
    committee: Committee,
    judged: Sequence[TemperedPoint],
    y: Any,
    peers: Sequence[tuple[str, float, float]],
) -> str:
    if not judged:
        return "## Quality\n\nNot measured: no rows were given that the model has not learned from."
    names = ("right answers", "log-loss") if is_classifier(committee) else ("R²", "mean error")
    own = next(point for point in judged if point.factor == 1.0)
    rows = [("this committee", own.score, own.error), *peers]
    table = _table(
        ("model", *names),
        [(name, f"{score:.3f}", quantity(error, 3)) for name, score, error in rows],
    )
    told = f"On {len(y):,} rows that the model has not learned from."
    told += f" {_safe(usual_answer(y))}" if is_classifier(committee) else ""
    return f"## Quality\n\n{told}\n\n{table}"


def usual_answer(y: Any) -> str:
    """Say how often the most frequent class is right, which a model should exceed."""
    labels, counts = np.unique(np.asarray(y), return_counts=True)
    share = counts.max() / counts.sum()
    return f"The most frequent answer, {labels[counts.argmax()]}, is right for {share:.1%} of them."


def _rules(committee: Committee) -> str:
    if not hasattr(committee, "rules_"):
        return ""
    rules, parts = committee.rules_, []
    for rule in rules:
        told = [
            f"### Expert {rule.expert}: {_safe(rule.where)}",
            f"{rule.share:.0%} of the work; the condition tells its {rule.rows:,} rows with a "
            f"fidelity of {rule.fidelity:.2f}; {rules.measure} {decimals(rule.score, 2)} on them; "
            f"{rule.bits:.2f} bits a row.",
        ]
        n_told = rule.n_told(MOST_COLUMNS)
        says = rule.says(n_told)
        if says:
            told.append("\n".join(f"- {_safe(name)}: {_safe(text)}" for name, text in says))
        if more := rule.left(n_told):
            told.append(f"… and {more}.")
        if doubt := rule.doubt():
            told.append(f"{doubt}.")
        parts.append("\n\n".join(told))
    about = (
        f"Changes of {rules.unit} for one unit more, or for a category against the average (where "
        "there are only two, against the other one)."
    )
    return "\n\n".join(["## Rules", about, *parts])


def _bits(committee: Committee, judged: Sequence[TemperedPoint]) -> str:
    told = committee.information_
    lines = [
        "## Bits",
        f"The selector processes {told.selector:.2f} bits of a row to choose an expert, the chosen "
        f"expert {told.experts:.2f} to answer. {told.effective_experts:.1f} experts are in use.",
    ]
    if judged and len(told.in_use) > 1:
        name = "right answers" if is_classifier(committee) else "R²"
        rows = [
            (f"{point.factor:g}", f"{point.bits:z.2f}", f"{point.score:.3f}") for point in judged
        ]
        lines += [
            "The same experts if the selector looks less, or more closely (β₁ times a factor):",
            _table(("β₁ times", "selector bits", name), rows),
        ]
    return "\n\n".join(lines)


def _columns(committee: Committee) -> str:
    table = _table(("column", "taken as", "what was done"), encoding_of(committee).table())
    return f"## Columns\n\n{table}"


def _limits(committee: Committee) -> str:
    lines = [
        "Rows unlike those of `fit` get an answer, too, without a warning: the selector looks no "
        "farther than a few deviations from the mean, and beyond the rows that were learned from a "
        "straight line continues.",
        "Weights are associations in the table, not effects of a change; their standard errors do "
        "not include that the division itself was found from the same rows.",
    ]
    if hasattr(committee, "rules_"):
        worst = min((rule.fidelity for rule in committee.rules_), default=1.0)
        lines.append(
            f"Conditions are short descriptions of what the selector does: the least faithful one "
            f"has a fidelity of {worst:.2f}."
        )
    gone = [column.label for column in encoding_of(committee).columns if column.kind == "left out"]
    if gone:
        lines.append(f"Not used: {_safe(', '.join(gone))}.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _settings(committee: Committee) -> str:
    settings = {name: value for name, value in committee.get_params().items() if name != "verbose"}
    return "## Settings\n\n" + _table(
        ("setting", "value"), [(name, str(value)) for name, value in settings.items()]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_safe(cell) for cell in line) + " |" for line in lines)


def _safe(text: str) -> str:
    """Return text of the data that is no markup: not of HTML, links, code or tables."""
    plain = re.sub(r"\s+", " ", str(text))
    plain = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", plain)
