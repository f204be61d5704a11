"""Few-shot baselines on small images whose classes are easy, and on tasks with known answers."""

import math
import types
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone

from pinfactory import networks
from pinfactory.baselines import ANIL, MAML, MatchingNetworks, PreTraining, PrototypicalNetworks
from pinfactory.baselines.few_shot import build_network
from pinfactory.baselines.metric import MatchingModel, PrototypicalModel
from pinfactory.callbacks import Callback
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import ArrayTasks, Samples
from pinfactory.persistence import MismatchError, load

SIDE, N_CLASSES, N_DRAWINGS = 16, 24, 12


class Bars(ArrayTasks):
    """Classes are crosses at places of their own, drawn with noise."""

    def labelled(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        rows = np.flatnonzero(np.isin(bar_labels(), self.classes(split)))
        labels = np.unique(bar_labels()[rows], return_inverse=True)[1]
        return (255 * np.asarray(self.x)[rows]).astype(np.uint8), labels.astype(np.int32)


def bar_labels() -> np.ndarray:
    return np.repeat(np.arange(N_CLASSES), N_DRAWINGS)


@pytest.fixture(scope="module")
def tasks() -> Bars:
    random = np.random.default_rng(0)
    images = 0.2 * random.random((N_CLASSES, N_DRAWINGS, SIDE, SIDE)).astype(np.float32)
    for label in range(N_CLASSES):
        images[label, :, (2, 6, 10, 13)[label % 4]] += 0.5
        images[label, :, :, (1, 4, 7, 9, 12, 14)[label // 4]] += 0.3
    return Bars(
        images.reshape(-1, SIDE, SIDE),
        bar_labels(),
        ways=2,
        shots=2,
        queries=3,
        validation=0.2,
        test=0.3,
    )


FAST: dict[str, Any] = {
    "max_iter": 60,
    "batch_size": 4,
    "learning_rate": 3e-3,
    "random_state": 0,
}


@pytest.mark.parametrize(
    "learner",
    [
        PrototypicalNetworks(**FAST),
        MatchingNetworks(**FAST),
        MAML(inner_rate=0.003, inner_steps=2, **FAST),
        ANIL(inner_rate=0.003, inner_steps=2, first_order=True, **FAST),
        PreTraining(**FAST | {"batch_size": 32}),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_one_block_learns_to_learn_and_is_stored(learner: Any, tasks: Bars, tmp_path: Path) -> None:
    evaluation = learner.fit(tasks).evaluate(tasks, 150)
    assert evaluation.mean > 0.9
    assert len(evaluation.scores) == 150
    learner.save(tmp_path / "learner.pin")
    again = load(tmp_path / "learner.pin")
    np.testing.assert_array_equal(again.evaluate(tasks, 150).scores, evaluation.scores)
    # With steps of no size a warm start shows whether all that was learned is there.
    still = {"warm_start": True, "learning_rate": 0.0, "max_iter": 1}
    scores = again.set_params(**still).fit(tasks).evaluate(tasks, 150).scores
    np.testing.assert_array_equal(scores, evaluation.scores)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("kind", [PrototypicalNetworks, MatchingNetworks])
def test_four_blocks_learn_and_store_their_statistics(
    kind: Any, tasks: Bars, tmp_path: Path
) -> None:
    learner = kind(4, **FAST).fit(tasks)
    assert learner.evaluate(tasks, 50).mean > 0.9
    x = np.asarray(tasks.x)
    support, labels = x[[0, 1, 30, 31]], [0, 0, 1, 1]
    adapted = learner.adapt(support, labels)
    together = adapted.predict(x[2:8])
    alone = [adapted.predict(x[i : i + 1])[0] for i in range(2, 8)]
    np.testing.assert_array_equal(together, alone)
    learner.save(tmp_path / "learner.pin")
    again = load(tmp_path / "learner.pin").adapt(support, labels).predict_proba(x[2:8])
    np.testing.assert_array_equal(again, learner.adapt(support, labels).predict_proba(x[2:8]))


@pytest.fixture
def network(rng: np.random.Generator) -> HeadedNetwork:
    """Features that are two numbers of the image, as they are."""
    head = networks.linear(2, 2, key=jax.random.key(0))
    return HeadedNetwork(lambda image, key=None: image[0, :2], head)


def images(points: list[list[float]]) -> jax.Array:
    return jnp.zeros((len(points), 4, 4)).at[:, 0, :2].set(jnp.asarray(points))


def test_prototypes_are_class_means(network: HeadedNetwork) -> None:
    support = Samples(images([[0, 0], [2, 0], [0, 4]]), jnp.asarray([0, 0, 1]))
    model = PrototypicalModel(network, jnp.asarray(0.0))
    logits = model(support, images([[1, 1]]))
    # Squared distances to (1, 0) and to (0, 4).
    np.testing.assert_allclose(logits, [[-1.0, -10.0]], atol=1e-5)


@pytest.mark.parametrize("kind", [PrototypicalModel, MatchingModel])
def test_a_new_task_may_have_fewer_classes_than_those_of_training(
    network: HeadedNetwork, kind: Any
) -> None:
    three = eqx.tree_at(lambda n: n.head, network, networks.linear(2, 3, key=jax.random.key(0)))
    support, query = Samples(images([[0, 1], [2, 0]]), jnp.asarray([0, 1])), images([[1, 3]])
    logits = kind(three, jnp.asarray(0.0))(support, query)
    np.testing.assert_allclose(logits[:, :2], kind(network, jnp.asarray(0.0))(support, query))
    assert logits[0, 2] == -np.inf


def test_matching_weighs_labels_by_cosines(network: HeadedNetwork) -> None:
    support = Samples(images([[3, 0], [1, 1], [0, 2]]), jnp.asarray([0, 0, 1]))
    model = MatchingModel(network, jnp.asarray(0.0))
    logits = model(support, images([[5, 0]]))
    # Two features: the scale is exp(0) · 2.
    weights = np.exp(2.0 * np.asarray([1.0, np.sqrt(0.5), 0.0]))
    expected = np.asarray([weights[0] + weights[1], weights[2]]) / weights.sum()
    np.testing.assert_allclose(np.exp(logits[0]), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "learner",
    [PrototypicalNetworks(**FAST), MAML(inner_rate=0.003, inner_steps=2, **FAST)],
    ids=lambda learner: type(learner).__name__,
)
def test_adapting_gives_an_ordinary_classifier(learner: Any, tasks: Bars) -> None:
    """Labels of any type, and a task with fewer classes than those of training."""
    three = Bars(tasks.x, bar_labels(), ways=3, shots=2, queries=3, validation=0.2, test=0.3)
    learner.fit(three)
    rows = [np.flatnonzero(bar_labels() == label) for label in three.classes("test")[:2]]
    x = np.asarray(tasks.x)
    support, query = (np.concatenate([x[row[part]] for row in rows]) for part in np.s_[:3, 3:])
    names = np.asarray(["left", "right"])
    adapted = clone(learner.adapt(support, names.repeat(3))).fit(support, names.repeat(3))
    assert adapted.score(query, names.repeat(N_DRAWINGS - 3)) > 0.85
    probs = adapted.predict_proba(query)
    assert probs.shape == (len(query), 2)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0)
    found = learner.adapt(support, [0, 0, 0, 1, 1, 1]).predict(query)
    np.testing.assert_array_equal(names[found], adapted.predict(query))
    with pytest.raises(ValueError, match=r"each of 2 to 3 classes, .* but got 4"):
        learner.adapt(support, [0, 1, 2, 3, 3, 3])
    with pytest.raises(ValueError, match=r"shape \(16, 16\), .* but got an array of shape"):
        learner.adapt(support[:, 1:], names.repeat(3))


def test_the_same_seed_gives_the_same_learner(tasks: Bars) -> None:
    one, two = (
        PrototypicalNetworks(max_iter=5, random_state=3).fit(tasks).model_ for _ in range(2)
    )
    assert eqx.tree_equal(one, two)


def test_training_goes_on_from_its_checkpoint(tasks: Bars, tmp_path: Any) -> None:
    """A run that is stopped half-way ends where one in a single go does."""
    settings: dict[str, Any] = {"max_iter": 150, "batch_size": 2, "random_state": 0}

    class Stop(Callback):
        def chunk(self, progress: Any, run: Any) -> bool:
            return True

    file = tmp_path / "half.pin"
    half = PrototypicalNetworks(**settings).fit(tasks, callbacks=Stop(), checkpoint=file)
    assert half.n_iter_ == 100
    resumed = PrototypicalNetworks(**settings).fit(tasks, checkpoint=file)
    assert [progress.step for progress in resumed.history_] == [150]
    assert eqx.tree_equal(resumed.model_, PrototypicalNetworks(**settings).fit(tasks).model_)
    more = PrototypicalNetworks(**settings | {"max_iter": 200}).fit(tasks, checkpoint=file)
    assert not eqx.tree_equal(more.model_, resumed.model_)
    assert float(more.state_.learning_rate.steps) == 200
    brighter = Bars(1.1 * np.asarray(tasks.x), bar_labels(), ways=2, shots=2, queries=3)
    with pytest.raises(MismatchError, match=r"belongs to tasks \S+, but this run has tasks"):
        PrototypicalNetworks(**settings).fit(brighter, checkpoint=file)


def test_a_refit_that_fails_or_is_interrupted_early_changes_nothing(tasks: Bars) -> None:
    class Break(Callback):
        def start(self, run: Any, total: int) -> None:
            raise KeyboardInterrupt

    learner = PrototypicalNetworks(max_iter=2, random_state=0).fit(tasks)
    before = dict(vars(learner))
    with pytest.raises(KeyboardInterrupt):
        learner.fit(tasks, callbacks=Break())
    assert vars(learner).keys() == before.keys()
    assert all(vars(learner)[name] is value for name, value in before.items())


def test_a_warm_start_goes_on_from_what_was_learned(tasks: Bars, tmp_path: Path) -> None:
    """Steps of no size leave the model as it was, whatever adapting to new tasks needs."""
    learner = MAML(inner_rate=0.003, inner_steps=1, test_steps=3, max_iter=3, batch_size=2)
    learner.set_params(random_state=0)
    first = learner.fit(tasks).model_
    learner.set_params(warm_start=True, learning_rate=0.0, max_iter=1).fit(tasks)
    assert eqx.tree_equal(learner.model_, first)
    file = tmp_path / "run.pin"
    learner.set_params(warm_start=False).fit(tasks, checkpoint=file)
    with pytest.raises(MismatchError, match="belongs to warm_start None, but this run"):
        learner.set_params(warm_start=True).fit(tasks, checkpoint=file)


def test_pre_training_needs_labels(tasks: Bars) -> None:
    class NoLabels:
        draw, build = tasks.draw, tasks.build

    with pytest.raises(TypeError, match="must have a method `labelled`"):
        PreTraining(max_iter=1).fit(NoLabels())


def test_images_whose_statistics_would_overflow_are_refused(tasks: Bars) -> None:
    huge = Bars(1e30 * tasks.x, bar_labels(), ways=2, shots=2, queries=3)
    with pytest.raises(ValueError, match=r"numbers of at most 1e\+06, .* but got"):
        MAML(max_iter=1).fit(huge)


def test_answers_that_are_not_numbers_are_refused(tasks: Bars) -> None:
    """Images far from all that training has seen."""
    learner = MAML(max_iter=1, batch_size=2, random_state=0).fit(tasks)
    with pytest.raises(ValueError, match="answers to 50 of 50 tasks are not finite"):
        learner.evaluate(Bars(1e30 * tasks.x, bar_labels(), ways=2, shots=2, queries=3), 50)
    x = 1e30 * np.asarray(tasks.x)[[0, 1, 30, 31]]
    with pytest.raises(ValueError, match="not finite"):
        learner.adapt(x, [0, 0, 1, 1]).predict(x)


def test_colour_images_are_images(tasks: Bars) -> None:
    """Only the second colour tells classes apart."""
    x = np.asarray(tasks.x)
    noise = np.random.default_rng(1).random(x.shape).astype(np.float32)
    colours = Bars(
        np.stack([noise, x, noise], axis=-1), bar_labels(), ways=2, shots=2, queries=3, test=0.3
    )
    learner = PrototypicalNetworks(**FAST).fit(colours)
    assert learner.input_shape_ == (SIDE, SIDE, 3)
    assert learner.evaluate(colours, 150).mean > 0.8


def test_vectors_are_refused() -> None:
    vectors = ArrayTasks(np.zeros((40, 3)), np.repeat([0, 1], 20), ways=2, shots=1, test=0.0)
    with pytest.raises(ValueError, match=r"must be images .* but got samples of shape \(3,\)"):
        PrototypicalNetworks(max_iter=1).fit(vectors)


def test_adapting_four_blocks_need_the_statistics_of_the_task(tasks: Bars) -> None:
    with pytest.raises(ValueError, match="`transductive` must be True for four blocks"):
        MAML(blocks=4).fit(tasks)


def test_other_numbers_of_blocks_are_refused(tasks: Bars) -> None:
    with pytest.raises(ValueError, match="`blocks` must be 1 or 4, but got 3"):
        MAML(blocks=3).fit(tasks)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("steps", [math.inf, 10**30, 10**9, -1, None])
@pytest.mark.parametrize("kind", [MAML, PreTraining])
def test_a_number_of_steps_that_nobody_can_wait_for_is_refused(kind, steps):
    # As a file can have it: settings of a fitted learner are read, not fitted with.
    learner = kind(test_steps=steps)
    learner.n_outputs_, learner.inner_rate_ = 2, 0.01
    images = np.zeros((2, 28, 28), np.float32)
    network = build_network(learner, images, 2, jax.random.key(0))
    model = network if kind is PreTraining else MAML()._model(network)
    learner.state_ = types.SimpleNamespace(model=model)
    with pytest.raises(ValueError, match="`test_steps` must be an integer"):
        _ = learner.model_
