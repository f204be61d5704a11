"""A committee as an ONNX graph answers as the committee does."""

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest

from pinfactory import SpecialistClassifier, SpecialistRegressor

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

QUICK = {"n_experts": 3, "max_iter": 200, "random_state": 0, "early_stopping": False}


def table(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3)) * [1.0, 10.0, 0.1] + [0.0, 1000.0, 0.0]
    return x, np.where(x[:, 0] > 0, 3.0 * x[:, 2], x[:, 1] / 10) + random.normal(0, 0.1, n)


def run(committee, path, x) -> dict[str, np.ndarray]:
    committee.to_onnx(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": np.asarray(x, float)}), strict=True))


def check_selection(committee, found, X) -> None:
    share = committee.responsibilities(X)
    np.testing.assert_allclose(found["responsibilities"], share, atol=1e-5)
    prior = committee.information_.responsibility
    parts = [
        np.where(p > 0, p * np.log2(np.maximum(p, 1e-30) / max(q, 1e-30)), 0.0)
        for p, q in zip(share.T, prior, strict=True)
    ]
    np.testing.assert_allclose(found["bits"], np.sum(parts, axis=0), atol=1e-3)


# Perceptrons have two targets and noise that varies.
@pytest.mark.parametrize(
    ("selector", "expert", "noise"),
    [("tree", "linear", "constant"), ("mlp", "mlp", "varying"), ("linear", "constant", "constant")],
)
def test_a_regressor(selector, expert, noise, tmp_path):
    X, y = table()
    committee = SpecialistRegressor(
        selector=selector, expert=expert, noise=noise, start="random", **QUICK
    )
    committee.fit(X, np.column_stack([y, -y]) if noise == "varying" else y)
    # Far beyond what a selector looks at.
    asked = np.vstack([X, [[50.0, 0.0, -9.0]]])
    found = run(committee, tmp_path / "committee.onnx", asked)
    np.testing.assert_allclose(found["prediction"], committee.predict(asked), rtol=1e-4, atol=1e-3)
    check_selection(committee, found, asked)


def test_a_classifier_of_a_frame_with_labels_and_gaps(tmp_path):
    X, y = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.where(y > 50, "x", "y"))
    frame.loc[::9, "a"] = np.nan
    labels = np.select([y > 99, y > 0], ["high", "middle"], "low")
    committee = SpecialistClassifier(start="tree", **QUICK).fit(frame, labels)
    found = run(committee, tmp_path / "committee.onnx", committee.encoding_.transform(frame))
    np.testing.assert_allclose(found["probabilities"], committee.predict_proba(frame), atol=1e-5)
    assert (found["prediction"] == committee.predict(frame)).mean() > 0.99
    check_selection(committee, found, frame)
    import onnx

    (features,) = onnx.load(tmp_path / "committee.onnx").metadata_props
    assert features.value.split("\n") == [f.name for f in committee.encoding_.features]


def test_whole_labels_and_another_network_that_is_refused_by_name(tmp_path):
    X, y = table()
    classifier = SpecialistClassifier(start="random", **QUICK).fit(X, (y > 50).astype(int) * 7)
    found = run(classifier, tmp_path / "a.onnx", X)
    assert (found["prediction"] == classifier.predict(X)).mean() > 0.99
    with pytest.raises(TypeError):
        classifier.to_onnx(None)  # which once wrote a file of this name
    other = eqx.filter_vmap(lambda key: eqx.nn.MLP(3, 2, 4, 1, key=key))
    classifier.state_ = eqx.tree_at(
        lambda s: s.model.experts.network,
        classifier.state_,
        other(jax.random.split(jax.random.key(0), 3)),
    )
    with pytest.raises(ValueError, match="but not MLP"):
        classifier.to_onnx(tmp_path / "committee.onnx")
