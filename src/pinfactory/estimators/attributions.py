"""What every column contributes to the answers to rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import is_classifier

from pinfactory.tables import Encoding, as_frame

from .committee import Committee
from .conditions import level_codes
from .explain import encoding_of, standard_answers
from .table_learner import select_asked


@dataclass(frozen=True)
class Attributions:
    """Contributions of every column to every answer, with the attributes of SHAP's explanations.

    `to_shap` gives what SHAP's plots take.
    """

    values: np.ndarray  #: rows × columns, and × outputs if there are several
    #: What the experts who decide say of an average row; with the values it adds up to the answer
    #: exactly: the expected value of a regressor, the log-odds that a classifier's most
    #: responsible expert gives.
    base_values: np.ndarray
    data: np.ndarray  #: the user's values, categories as text
    feature_names: list[str]  #: the user's columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the values."""
        return self.values.shape

    def to_shap(self) -> Any:
        """Return a `shap.Explanation`, for `shap.plots`.

        Its `data` are numbers, by which plots are coloured and laid out: a category is its place
        among those of its column in alphabetical order. Its `display_data` are the user's values.
        """
        try:
            from shap import Explanation
        except ImportError as error:
            raise ImportError("`to_shap` needs pip install shap.") from error
        codes = np.column_stack([_codes(column) for column in self.data.T])
        return Explanation(
            values=self.values,
            base_values=self.base_values,
            data=codes,
            display_data=self.data,
            feature_names=self.feature_names,
        )


def _codes(column: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return numbers as they are, and categories numbered."""
    if any(isinstance(value, str) for value in column):
        return np.unique(column.astype(str), return_inverse=True)[1].astype(float)
    return column.astype(float)


def attribute(committee: Committee, X: Any) -> Attributions:
    """Return what every column contributes to the answers to all rows; see `Attributions`."""
    numbers = committee._numbers(X)
    encoding, x = encoding_of(committee), committee._standardised(numbers).astype(float)
    weight, bias = standard_answers(committee)
    share = committee._ask_numbers(select_asked, numbers)
    inside, outside, slope = x, np.zeros((1, *x.shape)), np.zeros((1, *weight.shape[1:]))
    if is_classifier(committee):
        share = np.eye(share.shape[1])[share.argmax(axis=1)]
    else:
        target = committee.target_scaler_
        weight = weight * target.scale_[:, None]
        bias = bias * target.scale_ + target.mean_
        if (beyond := committee._extension) is not None:
            (inside, outside), slope = beyond.divide(x), beyond.slope * target.scale_[:, None]
    used = [i for i, column in enumerate(encoding.columns) if encoding.places(i)]
    values = [
        np.einsum("nm,mod,nd->no", share, weight[:, :, p], inside[:, p])
        + np.einsum("knd,kod->no", outside[:, :, p], slope[:, :, p])
        for p in map(encoding.places, used)
    ]
    stacked, base = np.stack(values, axis=1), share @ bias
    if stacked.shape[2] == 1:
        stacked, base = stacked[..., 0], base[:, 0]
    columns = [encoding.columns[i] for i in used]
    data = np.stack(user_values(committee, X, numbers), axis=1)
    return Attributions(stacked, base, data, [column.label for column in columns])


def user_values(committee: Committee, X: Any, numbers: np.ndarray) -> list[np.ndarray]:
    """Return the user's values of every column in use: of a frame, or of what the model sees.

    The model takes what is unknown as average, which a reader is told.
    """
    encoding = encoding_of(committee)
    used = [i for i in range(len(encoding.columns)) if encoding.places(i)]
    if hasattr(committee, "encoding_") and as_frame(X) is not None:
        own = zip(used, encoding.values(X), strict=True)
        return [encoding.columns[i].told(values) for i, values in own]
    return [_seen_values(encoding, i, numbers) for i in used]


def _seen_values(encoding: Encoding, index: int, X: np.ndarray) -> np.ndarray:
    column, places = encoding.columns[index], encoding.places(index)
    if column.kind == "category":
        return np.asarray(column.indicated, object)[level_codes(X[:, places])]
    values = X[:, places[0]].astype(object)
    if column.has_missing:
        values[X[:, places[1]] > 0.5] = np.nan
    return values
