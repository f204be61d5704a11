"""The models that a committee is compared with."""

import numpy as np
import pandas as pd
import pytest

from pinfactory.report import BOOSTING, EBM, judge_peer, peers


@pytest.mark.parametrize("name", [BOOSTING, EBM])
def test_models_that_know_categories_and_gaps_take_them_so(name):
    if name == EBM:
        pytest.importorskip("interpret")
    random = np.random.default_rng(0)
    x, kind = random.normal(size=300), random.choice(list("abcdef"), 300)
    y = np.where(np.isin(kind, ["b", "e"]), 5.0, 0.0) + np.where(np.arange(300) % 4, x, 3.0)
    frame = pd.DataFrame({"x": x, "kind": kind})
    frame.loc[::4, "x"] = np.nan
    frame.loc[::9, "kind"] = None
    frame.loc[299, "kind"] = "once"
    models = []

    def make():
        models.append(peers(False, 0, 2)[name]())
        return models[0]

    told = judge_peer(name, make, None, (frame[:200], y[:200]), (frame[200:], y[200:]))
    assert told.score > 0.7
    if name == BOOSTING:
        assert models[0].is_categorical_.tolist() == [False, True]
    else:
        assert models[0].feature_types_in_ == ["continuous", "nominal"]
    assert models[0].n_features_in_ == 2
