"""How good a committee is on rows it has not seen, beside simpler and stronger models."""

import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from threadpoolctl import threadpool_limits

from pinfactory.tables import MISSING, OTHER, Encoding

COMMITTEE, LINEAR, TREE, BOOSTING = "committee", "one line", "tree", "boosting"
CUBIST, EBM = "Cubist", "EBM"
# Those that know categories and missing values.
NATIVE = (BOOSTING, EBM)
PEERS = (LINEAR, TREE, BOOSTING, CUBIST, EBM)
# Numbers (rows times features) beyond which a fit takes many minutes: fewer rows are learned from.
MOST_NUMBERS = {EBM: 50_000}
# Probabilities of 0 are raised to this, so that one row cannot cost infinitely much.
LEAST = 1e-3


class Judgement(NamedTuple):
    """One model on held-out rows."""

    name: str  # the model
    score: float  # R², or the share of right answers
    error: float  # the mean absolute error, or the mean log-loss in nats
    terms: int  # how many numbers one would have to read to know the whole model
    seconds: float  # processor time of training
    rows: int | None = None  # how many rows it learned from, if that is not all of them


def judge(
    name: str, model: Any, classes: np.ndarray | None, X: Any, y: np.ndarray, seconds: float = 0.0
) -> Judgement:
    """Judge a fitted model on rows; `classes` are those it knows, or None for numbers."""
    if classes is None:
        answer = np.asarray(model.predict(X), float)
        spread = np.sum((y - y.mean()) ** 2)
        score = 1.0 - np.sum((y - answer) ** 2) / max(spread, 1e-12)
        error = np.abs(y - answer).mean()
    else:
        proba = np.zeros((len(y), len(classes)))
        proba[:, np.searchsorted(classes, model.classes_)] = model.predict_proba(X)
        codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        known = classes[codes] == y
        right = np.where(known, proba[np.arange(len(y)), codes], 0.0)
        score = np.mean(known & (proba.argmax(axis=1) == codes))
        error = -np.log(np.maximum(right, LEAST)).mean()
    return Judgement(name, float(score), float(error), _terms(model), seconds)


def peers(classify: bool, seed: int, n_leaves: int) -> Mapping[str, Callable[[], Any]]:
    """Return what else one would try: models that take numbers, and those that are installed."""
    small = {"max_leaf_nodes": max(2, n_leaves), "random_state": seed}
    if classify:
        found: dict[str, Callable[[], Any]] = {
            LINEAR: lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            TREE: lambda: DecisionTreeClassifier(**small),
            BOOSTING: lambda: HistGradientBoostingClassifier(random_state=seed),
        }
    else:
        found = {
            LINEAR: lambda: make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13))),
            TREE: lambda: DecisionTreeRegressor(**small),
            BOOSTING: lambda: HistGradientBoostingRegressor(random_state=seed),
        }
        if find_spec("cubist"):
            from cubist import Cubist

            found[CUBIST] = lambda: Cubist(random_state=seed)
    if find_spec("interpret"):
        from interpret import glassbox

        kind = "Classifier" if classify else "Regressor"
        made = getattr(glassbox, f"ExplainableBoosting{kind}")
        found[EBM] = lambda: made(random_state=seed, n_jobs=1)
    return found


def judge_peer(
    name: str,
    make: Callable[[], Any],
    classes: np.ndarray | None,
    learned: tuple[Any, np.ndarray],
    held_out: tuple[Any, np.ndarray],
) -> Judgement:
    """Fit a model on a frame and its targets; judge it on others.

    Models that know categories and missing values take them so, as their documentation recommends;
    others take the numbers that a committee sees.
    """
    encoding, y = Encoding.learn(learned[0]), learned[1]
    prepare: Callable[[Encoding, Any], Any] = _native if name in NATIVE else Encoding.transform
    X, others = prepare(encoding, learned[0]), prepare(encoding, held_out[0])
    some = np.arange(len(y))
    if X.size > MOST_NUMBERS.get(name, np.inf):
        some = np.random.default_rng(0).permutation(some)[: MOST_NUMBERS[name] // X.shape[1]]
    start = time.process_time()
    # Threads that wait for one another on a busy machine take several times as long.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of iterations, names, and features of no use
        model = make().fit(X.iloc[some] if name in NATIVE else X[some], y[some])
        seconds = time.process_time() - start
        told = judge(name, model, classes, others, held_out[1], seconds)
    return told._replace(rows=None if len(some) == len(y) else len(some))


def _native(encoding: Encoding, frame: Any) -> Any:
    """Return a frame of numbers with gaps, and categories as such but for those too rare."""
    import pandas as pd

    used = [column for column in encoding.columns if column.kind != "left out"]
    found: dict[int, Any] = {}
    for i, (column, values) in enumerate(zip(used, encoding.values(frame), strict=True)):
        if column.kind == "category":
            levels = [level for level in column.indicated if level != MISSING]
            rare = OTHER if column.has_other else MISSING
            known = np.where(np.isin(values, [*levels, MISSING]), values, rare).astype(object)
            known[known == MISSING] = None
            found[i] = pd.Categorical(known, levels)
        else:
            found[i] = np.asarray(values, float)
    return pd.DataFrame(found).rename(columns=str)


def _terms(model: Any) -> int:
    """Return how many numbers there are to read: weights, leaves, gates or graphs' steps."""
    last = model[-1] if hasattr(model, "steps") else model
    if hasattr(last, "rules"):  # a committee
        rules = getattr(last, "rules_", None)
        return 0 if rules is None else rules.n_numbers
    if hasattr(last, "coef_"):
        return int(np.size(last.coef_))
    if hasattr(last, "tree_"):
        return int(last.tree_.node_count)  # a constant for each leaf, and a cut for each split
    if hasattr(last, "term_scores_"):
        return int(sum(np.size(scores) for scores in last.term_scores_))
    if hasattr(last, "coeffs_"):  # Cubist
        weights = last.coeffs_.drop(columns=["committee", "rule"], errors="ignore")
        return int(weights.notna().to_numpy().sum())
    trees = getattr(last, "_predictors", ())
    return int(sum(tree.get_n_leaf_nodes() for step in trees for tree in step))
