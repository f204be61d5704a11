"""Finds where each expert applies and what it says."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax
from sklearn.base import is_classifier

from pinfactory.tables import Encoding, Rule, Rules, Weight

from .committee import Committee, decide
from .conditions import Condition, fidelity, find_condition, level_codes
from .explain import encoding_of, is_linear, linear_answers, standard_errors
from .paths import Path, find_paths

# Columns that change answers by less are not printed: by a tenth of the deviation of the targets
# they explain at most a hundredth of the variance, and 0.1 of log-odds is 10 % of the odds.
LITTLE = 0.1


def find_rules(
    committee: Committee,
    X: Float[np.ndarray, "n d"],
    y: np.ndarray,
    weight: Float[np.ndarray, " n"],
) -> Rules:
    """Return the rules of a committee, measured on rows of numbers and their targets.

    Parameters
    ----------
    committee
        A fitted committee.
    X
        Rows as the committee sees them, before they are standardised.
    y
        Class codes, or a column for each target.
    weight
        Weights of the rows, above zero.
    """
    encoding, decision = encoding_of(committee), committee._ask_numbers(decide, X)
    log_share = decision.selections[0].log_probs
    owner = log_share.argmax(axis=1)
    answers, truth, names = _answers(committee, decision, y)
    value = error = np.zeros((committee.n_experts_, len(names), 0))
    if is_linear(committee):
        x = committee._standardised(X).astype(float)
        value = linear_answers(committee)[0]
        target = _standard_targets(committee, y)
        # p(m|x,y): an expert's noise is that of the rows it explains.
        share = softmax(log_share + _log_likelihood(committee, decision.answers, y), axis=1)
        error = standard_errors(committee, x, target, _counts(weight)[:, None] * share)
    rules, paths = [], find_paths(committee, X)
    for m in committee.information_.in_use.tolist():
        mine = owner == m
        if not mine.any():
            continue
        found, path = find_condition(encoding, X, mine, weight), paths[m] if paths else None
        told = _exact(encoding, X, path, mine, weight)
        typical = np.average(answers[mine, m], axis=0, weights=weight[mine])
        weights, rest = _weights(committee, encoding, X[mine], value[m], error[m])
        found = told if told is not None and told.fidelity >= found.fidelity else found
        rules.append(
            Rule(
                m,
                float(committee.information_.responsibility[m]),
                float(committee.information_.per_expert[m]),
                found.text(encoding),
                tuple(dict.fromkeys(encoding.columns[t.column].name for t in found.terms)),
                found.fidelity,
                path.gates if path else (),
                fidelity(path.holds(), mine, weight) if path else 0.0,
                found is told,
                int(mine.sum()),
                int(found.holds(encoding, X).sum()),
                dict(zip(names, typical.tolist(), strict=True)),
                weights,
                rest,
                _little(is_classifier(committee), truth[mine], weight[mine]),
                _score(is_classifier(committee), answers[mine, m], truth[mine], weight[mine]),
            )
        )
    if is_classifier(committee):
        of = f" of {committee.classes_[1]}" if len(committee.classes_) == 2 else ""
        return Rules(tuple(rules), len(X), "accuracy", f"log-odds{of}")
    return Rules(tuple(rules), len(X), "R²", "the target's units")


def _counts(weight: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return how many equal rows each row stands for.

    Whole weights count rows. Others only compare them: all together are then worth (Σw)²/Σw² rows
    (Kish 1965).
    """
    if (weight == np.round(weight)).all():
        return weight
    return weight * (weight.sum() / (weight**2).sum())


def _exact(
    encoding: Encoding, X: np.ndarray, path: Path | None, mine: np.ndarray, weight: np.ndarray
) -> Condition | None:
    """Return the way to an expert as a condition, if every gate looks at one column."""
    if path is None or path.terms is None:
        return None
    held = Condition(path.terms, 0.0).holds(encoding, X)
    return Condition(path.terms, fidelity(held, mine, weight))


def _answers(
    committee: Committee, decision: Any, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return each expert's answers in the user's units, the truth, and names of the outputs."""
    if is_classifier(committee):
        return np.exp(decision.answers.log_probs), y, [str(c) for c in committee.classes_]
    scaler = committee.target_scaler_
    one = getattr(committee, "target_name_", "")
    names = [one] if y.shape[1] == 1 else [str(o) for o in range(y.shape[1])]
    return decision.answers.mean * scaler.scale_ + scaler.mean_, y, names


def _standard_targets(committee: Committee, y: np.ndarray) -> np.ndarray:
    if is_classifier(committee):
        indicators = np.eye(len(committee.classes_))[y]
        return indicators[:, 1:] if len(committee.classes_) == 2 else indicators
    return (y - committee.target_scaler_.mean_) / committee.target_scaler_.scale_


def _log_likelihood(committee: Committee, answers: Any, y: np.ndarray) -> np.ndarray:
    """Return log p(y|x,m) of every row and expert."""
    if is_classifier(committee):
        return np.take_along_axis(answers.log_probs, y[:, None, None], axis=2)[..., 0]
    target = _standard_targets(committee, y)[:, None]
    return committee._density(answers).logpdf(target).sum(axis=2)


def _little(classify: bool, truth: np.ndarray, weight: np.ndarray) -> float:
    """Return a change of answers that hardly counts: in log-odds, or beside the targets' spread."""
    if classify:
        return LITTLE
    center = np.average(truth, axis=0, weights=weight)
    variance = np.average((truth - center) ** 2, axis=0, weights=weight)
    return LITTLE * float(np.sqrt(variance).min())


def _score(classify: bool, answers: np.ndarray, truth: np.ndarray, weight: np.ndarray) -> float:
    if classify:
        return float(np.average(answers.argmax(axis=1) == truth, weights=weight))
    spread = weight @ (truth - np.average(truth, axis=0, weights=weight)) ** 2
    square = weight @ (truth - answers) ** 2
    return float((1.0 - square / np.maximum(spread, 1e-12)).min())


def _weights(
    committee: Committee, encoding: Encoding, mine: np.ndarray, value: np.ndarray, error: np.ndarray
) -> tuple[tuple[Weight, ...], tuple[float, ...]]:
    """Return an expert's weights, ordered by how much a column changes its answers to its rows.

    And by how much all columns do together, and those after the first, the second, and so on.
    """
    if not value.size:
        return (), ()
    n_outputs = len(value)
    several = [str(c) for c in getattr(committee, "classes_", range(n_outputs))]
    outputs = [""] if n_outputs == 1 else several
    ranked = []
    for i, column in enumerate(encoding.columns):
        places = encoding.places(i)
        if not places:
            continue
        if column.kind == "category":
            codes = level_codes(mine[:, places])
            counts = np.bincount(codes, minlength=len(column.indicated))[-len(places) :]
        else:
            counts = np.asarray([len(mine), *mine[:, places[1:]].sum(axis=0)], int)
        for o, output in enumerate(outputs):
            change = mine[:, places] @ value[o, places]
            found = [
                Weight(
                    column.label,
                    encoding.features[place].level,
                    output,
                    float(value[o, place]),
                    float(error[o, place]),
                    int(count),
                )
                for place, count in zip(places, counts, strict=True)
                if count
            ]
            if change.std() > 0.0:
                ranked.append((o, change, found))
    ranked.sort(key=lambda each: -each[1].std())
    total = np.zeros((n_outputs, len(mine)))
    rest = [0.0]
    for o, change, _ in reversed(ranked):
        total[o] += change
        rest.append(float(total.std(axis=1).max()))
    return tuple(weight for *_, found in ranked for weight in found), tuple(reversed(rest))
