"""What linear experts have learned, as a table in the units of the user's own data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from .committee import Committee

if TYPE_CHECKING:
    import pandas

# An expert with a smaller share of the data is idle, and what it would say means nothing.
IDLE = 0.001


def explain(committee: Committee, feature_names: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Return one row of weights for every busy linear expert (and class or output, if several).

    The rows of a classifier give log-odds: of ``classes_[1]`` for two classes, else of every
    class against the geometric mean of all. Those of a regressor give the expected value.

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
    weight, intercept = _in_own_units(committee, *_parameters(committee))
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("`explain` returns a table: pip install pandas.") from error

    share = committee.information_.responsibility
    busy = np.flatnonzero(share >= min(IDLE, share.max()))
    weight, intercept = weight[busy], intercept[busy]
    n_experts, n_rows = intercept.shape
    columns: dict[str, np.ndarray] = {"expert": np.repeat(busy, n_rows)}
    if n_rows > 1:
        kinds = committee.classes_ if is_classifier(committee) else np.arange(n_rows)
        columns["class" if is_classifier(committee) else "output"] = np.tile(kinds, n_experts)
    columns["share"] = np.repeat(share[busy], n_rows)
    columns["bits"] = np.repeat(committee.information_.per_expert[busy], n_rows)
    columns["intercept"] = intercept.ravel()
    weights = pd.DataFrame(weight.reshape(n_experts * n_rows, -1), columns=names)
    return pd.concat([pd.DataFrame(columns), weights], axis=1)


def _names(committee: Committee, given: Sequence[str] | None) -> list[str]:
    n_features = committee.n_features_in_
    if given is None:
        given = getattr(committee, "feature_names_in_", [f"x{i}" for i in range(n_features)])
    names = list(given)
    if len(names) != n_features:
        raise ValueError(
            f"`feature_names` must name all {n_features} features, but got {len(names)} names."
        )
    return names


def _parameters(committee: Committee) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (experts × outputs × features) and biases for standardised inputs."""
    network = getattr(committee.state_.model.experts, "network", None)
    if not isinstance(network, eqx.nn.Linear):
        raise ValueError(
            "`explain` needs linear experts, whose weights can be read, but got "
            f"expert={committee.expert!r}. Use `expert_predict` to see what each expert answers, "
            "or `plot_partition` to see who answers where."
        )
    weight = np.asarray(network.weight, float)
    if network.bias is None:
        return weight, np.zeros(weight.shape[:2])
    return weight, np.asarray(network.bias, float)


def _in_own_units(
    committee: Committee, weight: np.ndarray, intercept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Undo the standardisation of inputs and targets."""
    weight = weight / committee.scaler_.scale_
    intercept = intercept - weight @ committee.scaler_.mean_
    if is_classifier(committee):
        if len(committee.classes_) == 2:
            return np.diff(weight, axis=1), np.diff(intercept, axis=1)
        # Logits mean the same with a constant added; the ones that sum to zero are unique.
        return (
            weight - weight.mean(axis=1, keepdims=True),
            intercept - intercept.mean(axis=1, keepdims=True),
        )
    target = committee.target_scaler_
    # Beyond the means, outputs tell how sure an expert is.
    weight, intercept = weight[:, : len(target.scale_)], intercept[:, : len(target.scale_)]
    return weight * target.scale_[:, None], intercept * target.scale_ + target.mean_
