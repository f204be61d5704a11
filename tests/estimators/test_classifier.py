import pickle
from functools import cache

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_circles
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pinfactory
from pinfactory import SpecialistClassifier, base
from pinfactory.callbacks import Callback, ProgressBar
from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Scheduled
from pinfactory.core.hierarchy import pick
from pinfactory.core.information import measure
from pinfactory.estimators import committee as committees
from pinfactory.estimators import fitting, table_learner
from pinfactory.estimators.classifier import stratified_order
from pinfactory.estimators.table import Table, Validation

# Tests share shapes (rows, experts, restarts, batch), so that they share compiled programs.
SETTINGS = {
    "n_experts": 3,
    "beta_selector": 25.0,
    "beta_expert": 25.0,
    "max_iter": 400,
    "batch_size": 32,
    "learning_rate": 0.01,
    "early_stopping": False,
    "n_init": 1,
    "random_state": 0,
}


def quick(**settings):
    return SpecialistClassifier().set_params(**{**SETTINGS, **settings})


def circles(n, seed=0):
    x, y = make_circles(n, factor=0.4, noise=0.05, random_state=seed)
    return 1000.0 * x + 5000.0, np.asarray(["outer", "inner"])[y]


X, Y = circles(60)


@pytest.fixture(scope="module")
def committee():
    return quick(max_iter=2000).fit(X, Y)


@pytest.fixture(scope="module")
def expert_answers(committee):
    """Return p(y|x,m) of linear experts, in NumPy."""
    network = committee.state_.model.experts.network
    weight, bias = np.asarray(network.weight, float), np.asarray(network.bias, float)

    def answer(x):
        z = (x - X.mean(axis=0)) / X.std(axis=0)
        return softmax(np.einsum("moi,ni->nmo", weight, z) + bias, axis=-1)

    return answer


def test_linear_experts_together_learn_what_one_cannot(committee):
    assert committee.score(*circles(500, seed=1)) > 0.95


# ------------------------------------------------------------------------------------- routing


def test_responsibilities_sum_to_one_and_assign_takes_the_largest(committee):
    shares = committee.responsibilities(X)
    assert shares.shape == (60, 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(committee.assign(X), shares.argmax(axis=1))


def test_mixture_is_the_sum_of_answers_weighted_by_responsibility(committee, expert_answers):
    expected = np.einsum("nm,nmk->nk", committee.responsibilities(X), expert_answers(X))
    np.testing.assert_allclose(committee.predict_proba(X), expected, atol=1e-5)
    np.testing.assert_array_equal(committee.predict(X), committee.classes_[expected.argmax(axis=1)])


def test_best_is_the_answer_of_the_most_responsible_expert(committee, expert_answers):
    expected = expert_answers(X)[np.arange(60), committee.responsibilities(X).argmax(axis=1)]
    np.testing.assert_allclose(committee.predict_proba(X, routing="best"), expected, atol=1e-5)


def test_sampled_follows_responsibilities(expert_answers, committee):
    # Between two experts; enough rows for more than one block.
    inputs = np.random.default_rng(0).uniform(X.min(axis=0), X.max(axis=0), (1000, 2))
    x = inputs[[committee.responsibilities(inputs).max(axis=1).argmin()]]
    n = 12_000
    answers = committee.predict_proba(np.repeat(x, n, axis=0), routing="sampled")
    distance = np.abs(answers[:, None, :] - expert_answers(x)).sum(axis=2)
    chosen = distance.argmin(axis=1)
    assert distance.min(axis=1).max() < 1e-4
    share = committee.responsibilities(x)[0]
    assert share.max() < 0.9
    error = 5 * np.sqrt(share * (1 - share) / n) + 1e-4
    assert (np.abs(np.bincount(chosen, minlength=3) / n - share) < error).all()
    # Blocks do not repeat each other's draws.
    assert (chosen[: n - table_learner.BLOCK] != chosen[table_learner.BLOCK :]).any()


def test_expert_predict_is_the_opinion_of_one_expert(committee, expert_answers):
    expected = committee.classes_[expert_answers(X)[:, 1].argmax(axis=1)]
    np.testing.assert_array_equal(committee.expert_predict(X, 1), expected)
    with pytest.raises(ValueError, match="`expert` must be below 3, but got 3"):
        committee.expert_predict(X, 3)


def test_information_is_that_of_the_core_on_the_training_data(committee, expert_answers):
    told, shares = committee.information_, committee.responsibilities(X)
    mean_share = shares.mean(axis=0)
    assert told.selector == pytest.approx(
        entropy(mean_share, base=2) - entropy(shares, base=2, axis=1).mean(), abs=1e-3
    )
    assert told.effective_experts == pytest.approx(2 ** entropy(mean_share, base=2), rel=1e-3)
    np.testing.assert_allclose(told.responsibility, mean_share, atol=1e-4)
    mixture = np.einsum("nm,nmk->nk", shares, expert_answers(X))
    assert told.overall == pytest.approx(
        entropy(mixture.mean(axis=0), base=2) - entropy(mixture, base=2, axis=1).mean(), abs=1e-3
    )
    x = jax.numpy.asarray(committee._standardised(X))
    measured = eqx.filter_jit(lambda model: measure(committees.decide(model, x)))(
        committee.state_.model
    )
    assert told.experts == pytest.approx(float(measured.experts), abs=1e-3)
    np.testing.assert_allclose(told.per_expert, measured.per_expert, atol=1e-2)
    assert told.experts == pytest.approx(mean_share @ told.per_expert, abs=1e-3)


# --------------------------------------------------------------------------- weights and rows


def same(a, b, x=X):
    np.testing.assert_array_equal(a.predict_proba(x), b.predict_proba(x))


def test_a_weight_is_a_number_of_repetitions_exactly():
    times = np.random.default_rng(0).integers(0, 3, size=len(X))
    weighted = quick().fit(X, Y, sample_weight=times)
    same(weighted, quick().fit(np.repeat(X, times, axis=0), np.repeat(Y, times)))
    same(weighted, quick().fit(X[times > 0], Y[times > 0], times[times > 0]))


def test_the_order_of_rows_does_not_matter_at_all():
    order = np.random.default_rng(0).permutation(len(X))
    same(quick().fit(X, Y), quick().fit(X[order], Y[order]))


def test_class_weights_are_sample_weights():
    weight = np.where(Y == "inner", 3.0, 1.0)
    same(quick(class_weight={"inner": 3.0}).fit(X, Y), quick().fit(X, Y, weight))


def test_balanced_classes_weigh_the_same_whether_repeated_or_weighted():
    x, y = np.concatenate([X, X[Y == "inner"]]), np.concatenate([Y, Y[Y == "inner"]])
    by_hand = quick().fit(x, y, np.where(y == "inner", 0.75, 1.5))
    np.testing.assert_allclose(
        quick(class_weight="balanced").fit(x, y).predict_proba(X),
        by_hand.predict_proba(X),
        atol=1e-4,
    )
    weighted = quick(class_weight="balanced").fit(X, Y, np.where(Y == "inner", 2.0, 1.0))
    np.testing.assert_allclose(weighted.predict_proba(X), by_hand.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize(
    "labels", [np.asarray([True, False]), np.asarray([-7, 4]), np.asarray(["b", "a"], object)]
)
def test_labels_may_be_of_any_type(labels):
    y = labels[(Y == "inner").astype(int)]
    predicted = quick().fit(X, y).predict(X)
    assert predicted.dtype == y.dtype
    assert set(predicted) <= set(labels.tolist())
    assert (predicted == y).mean() > 0.8


def test_many_classes_are_one_more_output_each():
    x, y = make_blobs(60, centers=5, cluster_std=0.3, random_state=0)
    many = quick().fit(x, y)
    assert many.predict_proba(x).shape == (60, 5)
    assert many.score(x, y) > 0.95


# ------------------------------------------------------------------------- scikit-learn's world


def test_pandas_names_are_kept_and_checked():
    frame = pd.DataFrame(X, columns=["width", "height"])
    named = quick().fit(frame, pd.Series(Y))
    assert named.feature_names_in_.tolist() == ["width", "height"]
    np.testing.assert_array_equal(named.predict_proba(frame), quick().fit(X, Y).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[["height", "width"]])


def test_pipelines_may_pass_pandas_on():
    pipeline = make_pipeline(StandardScaler(), quick()).set_output(transform="pandas")
    assert pipeline.fit(X, Y).score(X, Y) > 0.8
    assert pipeline[-1].feature_names_in_.tolist() == ["x0", "x1"]


def test_grid_search_clones_and_compares():
    search = GridSearchCV(quick(max_iter=200), {"beta_expert": [1e-3, 25.0]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"beta_expert": 25.0}
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


@pytest.mark.slow
def test_joblib_trains_in_processes_of_its_own():
    scores = [cross_val_score(quick(), X, Y, cv=2, n_jobs=n) for n in (1, 2)]
    np.testing.assert_array_equal(*scores)


def test_pickles_predict_the_same(committee):
    same(pickle.loads(pickle.dumps(committee)), committee)


def test_files_predict_the_same_with_names_and_labels(tmp_path):
    frame = pd.DataFrame(X, columns=["width", "height"])
    saved = quick(beta_selector=Scheduled(1.0, 25.0, 100, "linear")).fit(frame, Y)
    saved.save(tmp_path / "committee.pin")
    loaded = pinfactory.load(tmp_path / "committee.pin")
    same(saved, loaded, frame)
    np.testing.assert_array_equal(saved.predict(frame), loaded.predict(frame))
    assert loaded.feature_names_in_.tolist() == ["width", "height"]
    assert repr(loaded.get_params()) == repr(saved.get_params())
    assert loaded.information_.selector == saved.information_.selector
    saved.partial_fit(frame, Y)
    same(saved, loaded.partial_fit(frame, Y), frame)


# --------------------------------------------------------------------------- what one may choose


class Quadratic(eqx.Module):
    """An expert of the user's own."""

    linear: eqx.nn.Linear

    def __call__(self, x, *, key=None):
        return self.linear(jax.numpy.concatenate([x, x**2]))


def quadratic(inputs, outputs, *, key):
    return Quadratic(eqx.nn.Linear(2 * inputs, outputs, key=key))


def test_experts_may_be_any_module():
    own = quick(expert=quadratic, n_experts=1).fit(X, Y)
    assert own.score(X, Y) > 0.95
    same(pickle.loads(pickle.dumps(own)), own)


def test_mlp_experts_need_no_selector():
    mlp = quick(expert="mlp", expert_hidden=(16,), n_experts=1, max_iter=1000).fit(X, Y)
    assert mlp.score(X, Y) > 0.95


def test_a_scheduled_beta_arrives_at_its_end():
    schedule = Scheduled(1.0, 30.0, 300, "linear")
    scheduled = clone(quick(beta_selector=schedule)).fit(X, Y)
    assert float(scheduled.state_.constraints.resources[0].beta) == pytest.approx(30.0)
    assert float(schedule.beta) == 1.0


@pytest.mark.parametrize(("selector_bits", "expert_bits"), [(0.5, 0.3), (1.0, 0.0)])
def test_budgets_are_met(selector_bits, expert_bits):
    x, blob = make_blobs(
        60, centers=[[2, 2], [-2, -2], [2, -2], [-2, 2]], cluster_std=0.5, random_state=0
    )
    budget = quick(selector_bits=selector_bits, expert_bits=expert_bits, max_iter=1000)
    told = budget.fit(x, blob // 2).information_
    assert told.selector == pytest.approx(selector_bits, rel=0.05)
    assert told.experts == pytest.approx(expert_bits, rel=0.05, abs=1e-3)


def test_a_uniform_prior_stays_uniform():
    penalised = quick(prior="uniform", max_iter=1000).fit(X, Y)
    selector, expert = penalised.state_.constraints.priors.stages
    np.testing.assert_allclose(np.exp(selector.family.log_probs), 1 / 3, rtol=1e-5)
    np.testing.assert_allclose(np.exp(expert.family.log_probs), 1 / 2, rtol=1e-5)
    assert penalised.score(X, Y) > 0.9


def test_the_same_seed_gives_the_same_committee():
    same(quick().fit(X, Y), quick().fit(X, Y))
    # What begins as a tree is the same with every seed.
    one, other = (quick(start="random", random_state=n).fit(X, Y) for n in (0, 1))
    assert (other.predict_proba(X) != one.predict_proba(X)).any()


def test_without_held_out_samples_the_best_start_by_the_objective_is_kept(monkeypatch):
    seen = {}

    def spy(*args, **settings):
        seen["found"] = original(*args, **settings)
        return seen["found"]

    original = table_learner.search
    monkeypatch.setattr(table_learner, "search", spy)
    several = quick(n_init=3, start="random").fit(X, Y)
    kept, answers = several.predict_proba(X), []
    for index in range(3):
        several.state_ = pick(seen["found"].fit.states, index)
        answers.append(several.predict_proba(X))
    best = int(np.argmin([log_loss(Y, p) for p in answers]))
    same_as_kept = [np.allclose(kept, other, atol=1e-6) for other in answers]
    np.testing.assert_array_equal(same_as_kept, np.eye(3)[best])


NOISE = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2


@pytest.mark.parametrize("early_stopping", [True, "folds", "auto"])
def test_early_stopping_ends_when_nothing_improves(early_stopping):
    settings = {"max_iter": 10_000, "n_iter_no_change": 2}
    assert quick(early_stopping=early_stopping, **settings).fit(*NOISE).n_iter_ < 10_000
    if early_stopping is True:
        assert quick(early_stopping=False, **settings).fit(*NOISE).n_iter_ == 10_000


def test_folds_tell_when_a_committee_that_learns_from_all_samples_is_best(monkeypatch):
    runs = []

    def spy(self, table, states, replicas, validation, **settings):
        runs.append((validation, original(self, table, states, replicas, validation, **settings)))
        return runs[-1][1]

    original = fitting.Trainer.run
    monkeypatch.setattr(fitting.Trainer, "run", spy)
    fitted = quick(early_stopping="folds", start="random", max_iter=1000).fit(X, Y)
    ((folds, trained),) = runs
    assert folds.folded
    assert len(folds.learned[-1]) == 60
    scores = [progress.score[-1] for progress in trained.history]
    assert int(fitted.state_.step) == 100 * (1 + int(np.argmax(scores)))
    # The score is the mean log-likelihood of every sample by the fold that did not see it.
    assert fitted.score(X, Y) > 0.9
    assert -np.log(2) < max(scores) < 0


@pytest.mark.parametrize(
    ("n", "settings", "way"),
    [
        (9, {}, None),
        (10, {}, "folds"),
        (10_000, {}, "folds"),
        (10_001, {}, "part"),
        (40, {"selector_bits": 1.0}, "folds"),
        (100, {"beta_expert": Scheduled(1.0, 2.0, 10, "linear")}, "part"),
        (1, {"early_stopping": "folds"}, None),
        (2, {"early_stopping": True}, "part"),
        (10_000, {"early_stopping": False}, None),
    ],
)
def test_the_way_to_stop_depends_on_how_many_samples_there_are(n, settings, way):
    model = SpecialistClassifier(**settings)
    model.n_features_in_, model.classes_ = 2, np.arange(2)
    trainer = model._trainer()
    assert trainer.stopping(n, fitting.Replica(0, 4, *model._resources())) == way


# ------------------------------------------------------------------------------------- going on


@pytest.mark.parametrize("early_stopping", [False, True])
def test_warm_start_goes_on(early_stopping):
    warm = quick(warm_start=True, early_stopping=early_stopping, start="random").fit(X, Y)
    before = log_loss(Y, warm.predict_proba(X))
    warm.fit(X, Y)
    assert warm.n_iter_ == 400
    # Starting anew with the same seed would arrive at the same point again.
    assert log_loss(Y, warm.predict_proba(X)) < 0.9 * before


def test_warm_start_takes_new_settings():
    warm = quick(warm_start=True).fit(X, Y)
    warm.set_params(beta_selector=3.0, learning_rate=0.001).fit(X, Y)
    assert float(warm.state_.constraints.resources[0].beta) == 3.0
    assert float(warm.state_.learning_rate.start) == pytest.approx(0.001)
    with pytest.raises(ValueError, match=r"`n_experts` must stay 3 .*, but got 2"):
        warm.set_params(n_experts=2).fit(X, Y)
    with pytest.raises(ValueError, match=r"labels among \['inner', 'outer'\], but got \['new'\]"):
        warm.set_params(n_experts=3).fit(X, np.where(X[:, 0] > 5000, "new", "inner"))


def test_a_stream_is_learned_without_restarts():
    stream = quick(learning_rate=0.03)
    for seed in range(10):
        x, y = circles(60, seed=seed)
        stream.partial_fit(x, y, classes=["inner", "outer"])
        # From the second batch on as many earlier rows are seen once more.
        assert stream.n_iter_ == 2 + 4 * seed
    for seed in range(10, 60):
        stream.partial_fit(*circles(60, seed=seed))
    test = circles(500, seed=1000)
    assert stream.score(*test) > 0.9
    before = stream.predict_proba(test[0])
    stream.partial_fit(X[:1], Y[:1])
    assert np.abs(stream.predict_proba(test[0]) - before).max() < 0.2


def test_fit_may_be_followed_by_partial_fit():
    fitted = quick().fit(X, Y)
    before = log_loss(Y, fitted.predict_proba(X))
    for _ in range(20):
        fitted.partial_fit(X, Y)
    assert fitted.n_iter_ == 400 + 2 + 19 * 4
    assert log_loss(Y, fitted.predict_proba(X)) < before


def test_partial_fit_sees_every_sample(monkeypatch):
    seen = []

    def spy(learner, run, data, *, batches, steps, chunk, callbacks):
        start = int(run.step)
        seen.append(batches([[0, 0]], start, chunk)[0, : steps - start])
        return train(learner, run, data, batches=batches, steps=steps, chunk=chunk)

    train = base.train
    monkeypatch.setattr(base, "train", spy)
    stream = quick().partial_fit(X[:33], Y[:33], classes=["inner", "outer"])
    stream.partial_fit(X, Y)
    # The second batch of 60 comes with all 33 rows of the first.
    assert [rows.shape for rows in seen] == [(2, 32), (3, 32)]
    assert [sorted(set(rows.ravel().tolist())) for rows in seen] == [
        list(range(33)),
        list(range(93)),
    ]


def test_partial_fit_names_labels_it_does_not_know():
    stream = quick()
    with pytest.raises(ValueError, match="`classes` must be given in the first call"):
        stream.partial_fit(X, Y)
    with pytest.raises(ValueError, match=r"labels among \['inner', 'other'\], but got \['outer'\]"):
        stream.partial_fit(X, Y, classes=["inner", "other"])
    stream.partial_fit(X, Y, classes=["inner", "outer"])
    strange = np.where(X[:, 0] > 5000, "zebra", Y)
    with pytest.raises(ValueError, match=r"\['zebra'\]"):
        stream.partial_fit(X, strange)
    with pytest.raises(ValueError, match="`classes` must be the same in every call"):
        stream.partial_fit(X, Y, classes=["inner", "zebra"])
    with pytest.raises(ValueError, match="`class_weight` must be a dict or None for partial_fit"):
        stream.set_params(class_weight="balanced").partial_fit(X, Y)


def test_verbose_shows_a_bar_on_standard_error(capsys):
    quick(verbose=True).fit(X, Y)
    out, err = capsys.readouterr()
    assert out == ""
    assert "SpecialistClassifier: 100%" in err


@pytest.mark.parametrize("early_stopping", [False, True, "folds"])
def test_ctrl_c_keeps_what_was_learned(monkeypatch, early_stopping):
    pressed = []

    def press(self, progress, run):
        if progress.step >= 1000:
            pressed.append(progress.step)
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "chunk", press)
    stopped = quick(max_iter=100_000, verbose=True, early_stopping=early_stopping)
    with (
        pytest.warns(UserWarning, match="interrupted at step .* is kept"),
        pytest.raises(KeyboardInterrupt),
    ):
        stopped.fit(X, Y)
    assert [stopped.n_iter_] == pressed
    assert stopped.score(X, Y) > 0.8


def test_ctrl_c_ends_a_whole_grid_search(monkeypatch):
    def press(self, progress, run):
        pressed.append(progress.step)
        raise KeyboardInterrupt

    pressed = []
    monkeypatch.setattr(ProgressBar, "chunk", press)
    search = GridSearchCV(quick(verbose=True), {"beta_expert": [1e-3, 25.0]}, cv=2)
    with pytest.warns(UserWarning, match="interrupted"), pytest.raises(KeyboardInterrupt):
        search.fit(X, Y)
    assert len(pressed) == 1
    assert not hasattr(search, "best_score_")


@pytest.mark.parametrize("early_stopping", [False, True, "folds"])
def test_ctrl_c_before_the_first_chunk_changes_nothing(monkeypatch, early_stopping):
    def press(self, *args):
        raise KeyboardInterrupt

    fitted = quick(early_stopping=early_stopping).fit(X, Y)
    before = fitted.predict_proba(X)
    monkeypatch.setattr(Epochs, "__call__", press)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X, Y)
    np.testing.assert_array_equal(fitted.predict_proba(X), before)
    unfitted = quick(early_stopping=early_stopping)
    with pytest.raises(KeyboardInterrupt):
        unfitted.fit(X, Y)
    assert not hasattr(unfitted, "state_")


def stoppable(early_stopping):
    return quick(max_iter=600, n_iter_no_change=100, early_stopping=early_stopping)


@cache
def never_stopped(early_stopping):
    return stoppable(early_stopping).fit(X, Y)


@pytest.mark.filterwarnings("ignore:.*interrupted at step")
@pytest.mark.parametrize(
    ("early_stopping", "step", "error"),
    [
        (True, 200, OSError),
        (True, 500, OSError),
        ("folds", 200, OSError),
        ("folds", 500, OSError),
        (True, 500, KeyboardInterrupt),
        ("folds", 200, KeyboardInterrupt),
    ],
)
def test_a_fit_that_was_stopped_goes_on_from_its_checkpoint(tmp_path, early_stopping, step, error):
    class Stop(Callback):
        def chunk(self, progress, run):
            if progress.step == step:
                raise error("the machine went down")

    path = tmp_path / "fit.pin"
    with pytest.raises(error):
        stoppable(early_stopping).fit(X, Y, callbacks=Stop(), checkpoint=path)
    seen = []

    class Watch(Callback):
        def chunk(self, progress, run):
            seen.append(progress.step)

    resumed = stoppable(early_stopping).fit(X, Y, callbacks=[Watch()], checkpoint=path)
    whole = never_stopped(early_stopping)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))
    assert resumed.n_iter_ == whole.n_iter_
    assert seen[0] > step - 100


def test_a_checkpoint_of_another_fit_is_refused_by_name(tmp_path):
    path = tmp_path / "fit.pin"
    quick().fit(X, Y, checkpoint=path)
    with pytest.raises(ValueError, match="learning_rate"):
        quick(learning_rate=0.02).fit(X, Y, checkpoint=path)
    with pytest.raises(ValueError, match="data"):
        quick().fit(X[::2], Y[::2], checkpoint=path)
    longer = quick(max_iter=900).fit(X, Y, checkpoint=path)
    assert longer.n_iter_ == 900
    with pytest.raises(ValueError, match="has taken 900 steps of training, but this run has 100"):
        quick(max_iter=100).fit(X, Y, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to warm_start None, but this run"):
        longer.set_params(warm_start=True).fit(X, Y, checkpoint=path)


def test_of_several_starts_a_finished_fit_keeps_the_same_when_it_is_resumed(tmp_path):
    is_first = []
    for seed in range(3):
        several = {"n_init": 3, "start": "random", "random_state": seed}
        path = tmp_path / f"{seed}.pin"
        whole = quick(**several).fit(X, Y, checkpoint=path).predict_proba(X)
        resumed = quick(**several).fit(X, Y, checkpoint=path)
        np.testing.assert_array_equal(resumed.predict_proba(X), whole)
        first = quick(**several | {"n_init": 1}).fit(X, Y).predict_proba(X)
        is_first.append(np.allclose(first, whole, atol=1e-3))
    assert not all(is_first)


@pytest.mark.parametrize(("sizes", "n_folds"), [((60, 30), 3), ((30, 30, 30), 3), ((80, 20), 5)])
def test_every_fold_has_its_share_of_every_class(sizes, n_folds):
    # Classes that take turns in the order of rows must not end up in a fold each.
    y = np.repeat(np.arange(len(sizes)), sizes)
    table = Table(np.zeros((len(y), 1), np.float32), y, np.ones(len(y), np.float32))
    order = stratified_order(table, np.random.default_rng(0))
    *folds, _ = Validation.folds(table, order, n_folds).judged_rows
    for rows in folds:
        share = np.bincount(y[rows], minlength=len(sizes))
        np.testing.assert_allclose(share, np.asarray(sizes) / n_folds, atol=1.0)
