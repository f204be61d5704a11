"""What linear experts have learned, in the units and categories of the user's own data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np
from jaxtyping import Float
from scipy.special import expit, softmax
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from pinfactory.tables import Encoding

from .committee import Committee

if TYPE_CHECKING:
    import pandas


def explain(committee: Committee, feature_names: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Return one row of weights for every busy linear expert (and class or output, if several).

    The rows of a classifier give log-odds: of ``classes_[1]`` for two classes, else of every
    class against the geometric mean of all. Those of a regressor give the expected value. Weights
    of categories are differences from the average over all rows.

    Parameters
    ----------
    committee
        A fitted committee with linear experts.
    feature_names
        Names of the features; those seen in `fit`, or x0, x1, …, if not given.

    Returns
    -------
    pandas.DataFrame
        Columns ``expert``, ``class`` or ``output`` (if several), ``share`` (p(m)), ``bits``
        (I(X;Y|M=m)), ``intercept``, and the weight of every feature.
    """
    check_is_fitted(committee)
    names = _names(committee, feature_names)
    weight, intercept = linear_answers(committee)
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("`explain` returns a table: pip install pandas.") from error

    busy = committee.information_.in_use
    weight, intercept = weight[busy], intercept[busy]
    n_experts, n_rows = intercept.shape
    columns: dict[str, np.ndarray] = {"expert": np.repeat(busy, n_rows)}
    if n_rows > 1:
        kinds = committee.classes_ if is_classifier(committee) else np.arange(n_rows)
        columns["class" if is_classifier(committee) else "output"] = np.tile(kinds, n_experts)
    columns["share"] = np.repeat(committee.information_.responsibility[busy], n_rows)
    columns["bits"] = np.repeat(committee.information_.per_expert[busy], n_rows)
    columns["intercept"] = intercept.ravel()
    weights = pd.DataFrame(weight.reshape(n_experts * n_rows, -1), columns=names)
    return pd.concat([pd.DataFrame(columns), weights], axis=1)


def encoding_of(committee: Committee) -> Encoding:
    """Return what was done to the columns; nothing, for a committee fitted on an array."""
    known = getattr(committee, "encoding_", None)
    names = getattr(committee, "feature_names_in_", None)
    if known is not None:
        return known
    return Encoding.of_numbers(
        [f"x{i}" for i in range(committee.n_features_in_)] if names is None else list(names)
    )


def _names(committee: Committee, given: Sequence[str] | None) -> list[str]:
    known = [feature.name for feature in encoding_of(committee).features]
    names = known if given is None else list(given)
    if len(names) != len(known):
        raise ValueError(
            f"`feature_names` must name all {len(known)} features, but got {len(names)} names."
        )
    return names


def require_all_asked(committee: Committee, what: str) -> None:
    """Refuse to export a committee of several levels, or one that does not ask all experts."""
    hierarchy = committee.state_.model
    if len(hierarchy.sizes) > 1:
        raise ValueError(
            f"`{what}` needs one level of selection, but got n_experts={committee.n_experts!r}."
        )
    if hierarchy.top_k is not None:
        raise ValueError(
            f"`{what}` asks all experts: it needs top_k=None, but got {hierarchy.top_k}."
        )


def is_linear(committee: Committee) -> bool:
    """Whether the weights of the experts can be read."""
    experts = committee.state_.model.last_experts
    return isinstance(getattr(experts, "network", None), eqx.nn.Linear)


def standard_answers(
    committee: Committee,
) -> tuple[Float[np.ndarray, "m o d"], Float[np.ndarray, "m o"]]:
    """Return weights and intercepts of all experts for standardised inputs and targets.

    One output for two classes (the log-odds of the second), else one for each class or target.
    """
    if not is_linear(committee):
        raise ValueError(
            "`explain` needs linear experts, whose weights can be read, but got "
            f"expert={committee.expert!r}. Use `expert_predict` to see what each expert answers, "
            "or `plot_partition` to see who answers where."
        )
    network = getattr(committee.state_.model.last_experts, "network")  # noqa: B009
    # Experts of several levels stand side by side.
    weight = np.asarray(network.weight, float).reshape(-1, *network.weight.shape[-2:])
    bias = np.zeros(weight.shape[:2])
    if network.bias is not None:
        bias = np.asarray(network.bias, float).reshape(bias.shape)
    if is_classifier(committee):
        if len(committee.classes_) == 2:
            return np.diff(weight, axis=1), np.diff(bias, axis=1)
        # Logits mean the same with a constant added; the ones that sum to zero are unique.
        return weight - weight.mean(axis=1, keepdims=True), bias - bias.mean(axis=1, keepdims=True)
    # Beyond the means, outputs tell how sure an expert is.
    n_targets = len(committee.target_scaler_.scale_)
    return weight[:, :n_targets], bias[:, :n_targets]


def linear_answers(
    committee: Committee,
) -> tuple[Float[np.ndarray, "m o d"], Float[np.ndarray, "m o"]]:
    """Return weights and intercepts of all experts in the user's own units."""
    weight, intercept = standard_answers(committee)
    weight = weight / committee.scaler_.scale_
    intercept = intercept - weight @ committee.scaler_.mean_
    if not is_classifier(committee):
        target = committee.target_scaler_
        weight = weight * target.scale_[:, None]
        intercept = intercept * target.scale_ + target.mean_
    change, moved = centring(encoding_of(committee))
    return weight @ change.T, intercept + weight @ moved


def centring(encoding: Encoding) -> tuple[Float[np.ndarray, "d d"], Float[np.ndarray, " d"]]:
    """Return the matrix that turns weights of indicators into differences from their average.

    And the vector whose product with the weights is what moves to the intercept.

    A category's indicators add up to one, so that a constant may move between them and the
    intercept; the weights whose average over the rows is zero are unique.
    """
    change, moved = np.eye(len(encoding.features)), np.zeros(len(encoding.features))
    for i, column in enumerate(encoding.columns):
        places = encoding.places(i)
        if column.kind == "category" and len(places) > 1:
            change[np.ix_(places, places)] -= column.feature_shares()
            moved[places] = column.feature_shares()
    return change, moved


def standard_errors(
    committee: Committee,
    x: Float[np.ndarray, "n d"],
    target: Float[np.ndarray, "n o"],
    share: Float[np.ndarray, "n m"],
) -> Float[np.ndarray, "m o d"]:
    """Return the standard errors of the weights that `linear_answers` gives.

    Those of the posterior of a regression on the rows of each expert, weighted by its
    responsibility R: (XᵀRX/σ² + 1/τ²)⁻¹, and (XᵀRHX + 1/τ²)⁻¹ with the curvature H of a class. They
    hold for the division of the rows as it is.

    Standardised weights are taken as Gaussian around zero with variance τ², their own mean square
    but no less than one: a smaller one, such as the square of a weight by itself, would make an
    error smaller the weaker its weight. σ² is the sum of squares over the rows less the weights
    that they pay for, the trace of XᵀRX (XᵀRX + σ²/τ²)⁻¹.

    Parameters
    ----------
    committee
        A committee of linear experts.
    x, target
        Standardised rows, and targets: standardised numbers, or indicators of each class.
    share
        p(m|x,y), times how many rows each row stands for.
    """
    weight, bias = standard_answers(committee)
    change = centring(encoding_of(committee))[0] / committee.scaler_.scale_
    unit = np.ones(weight.shape[1])
    if not is_classifier(committee):
        unit = committee.target_scaler_.scale_
    ones = np.column_stack([x, np.ones(len(x))])
    errors = np.empty(weight.shape)
    for m, o in np.ndindex(weight.shape[:2]):
        answer, rows = x @ weight[m].T + bias[m], share[:, m]
        prior = np.eye(ones.shape[1]) / max(float(np.mean(weight[m, o] ** 2)), 1.0)
        if is_classifier(committee):
            probs = expit(answer) if answer.shape[1] == 1 else softmax(answer, axis=1)
            curvature, noise = probs[:, o] * (1.0 - probs[:, o]), 1.0
            gram = ones.T @ ((rows * curvature)[:, None] * ones)
        else:
            square = rows @ (target[:, o] - answer[:, o]) ** 2
            gram = ones.T @ (rows[:, None] * ones)
            noise = max(square / max(rows.sum(), 1e-9), 1e-12)
            paid = np.trace(np.linalg.solve(gram + noise * prior, gram))
            noise = max(square / max(rows.sum() - paid, 1.0), 1e-12)
        covariance = np.linalg.inv(gram / noise + prior)[:-1, :-1]
        variance = np.sum((change @ covariance) * change, axis=1)
        errors[m, o] = unit[o] * np.sqrt(np.maximum(variance, 0.0))
    return errors
