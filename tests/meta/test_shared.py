"""Experts that share features: what the kernel form stands for, and what they learn."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree
from sklearn.base import clone

from pinfactory.meta import MetaSpecialistClassifier
from pinfactory.meta.evaluation import answers, evaluate
from pinfactory.meta.experts import NearestCentre, TaskInput
from pinfactory.meta.shared import (
    DIRECTION_SCALE,
    HEAD_SCALE,
    FeatureExpert,
    KernelSteps,
    SharedHierarchy,
)
from pinfactory.meta.source import ScaledTasks
from pinfactory.meta.tasks import ArrayTasks, Samples
from pinfactory.persistence import load

SIDE, N_FAMILIES, N_PER_FAMILY, N_DRAWINGS = 14, 4, 8, 12
SMALL: dict[str, Any] = {"filters": 8, "rank": 4, "batch_size": 16, "random_state": 0}
TINY: dict[str, Any] = {"filters": 4, "rank": 2, "batch_size": 16, "random_state": 0}
LABELS = np.repeat(np.arange(N_FAMILIES * N_PER_FAMILY), N_DRAWINGS)


@pytest.fixture(scope="module")
def tasks() -> ArrayTasks:
    """Classes of four families: a family has its stroke in common, a class a place of a dot."""
    random = np.random.default_rng(0)
    shape = (N_FAMILIES, N_PER_FAMILY, N_DRAWINGS, SIDE, SIDE)
    images = 0.1 * random.random(shape).astype(np.float32)
    images[0, :, :, 6:8] += 0.8
    images[1, :, :, :, 6:8] += 0.8
    images[2] += 0.8 * np.eye(SIDE, dtype=np.float32)
    images[3] += 0.8 * np.eye(SIDE, dtype=np.float32)[::-1]
    for number in range(N_PER_FAMILY):
        row, column = divmod(number, 4)
        images[:, number, :, 2 + 7 * row : 4 + 7 * row, 3 * column + 1 : 3 * column + 3] += 0.8
    flat = np.clip(images, 0, 1).reshape(-1, SIDE, SIDE)
    return ArrayTasks(flat, LABELS, ways=2, shots=2, queries=4, test=0.25)


@pytest.fixture(scope="module")
def specialists(tasks: ArrayTasks) -> MetaSpecialistClassifier:
    return MetaSpecialistClassifier(4, max_iter=300, **SMALL).fit(tasks)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_kernel_steps_are_gradient_steps_on_the_head(
    rng: np.random.Generator, n_classes: int
) -> None:
    """The same ten steps on weights themselves, by automatic differentiation."""
    n_features, n_support, n_query, rank = 6, 2 * n_classes, 3, 2

    def random(tree: PyTree) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape)), tree)

    experts = random(FeatureExpert.start(2, n_features, n_classes, rank, key=jax.random.key(0)))
    rule = random(KernelSteps.start(n_features))
    support, query = (jnp.asarray(rng.normal(size=(n, n_features))) for n in (n_support, n_query))
    labels = jnp.repeat(jnp.arange(n_classes), 2)
    chosen = jnp.asarray(1)
    got = eqx.filter_jit(rule)(experts, support, labels, query, chosen)

    def utility(w: jax.Array, b: jax.Array, weights: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(support @ w + b)
        return jnp.mean(weights * log_probs[jnp.arange(n_support), labels])

    slopes = jax.jit(jax.grad(utility, argnums=(0, 1)))
    for m in range(2):
        directions = DIRECTION_SCALE * experts.directions[m]
        matrix = jnp.diag(jnp.exp(rule.log_rates)) + directions @ directions.T
        weights = jnp.exp(experts.log_weights[m])[labels]
        trust = jnp.exp(rule.log_trust)
        w = trust * HEAD_SCALE * experts.weight[1]
        b = trust * experts.bias[1] + experts.offset[m]
        for _ in range(10):
            slope_w, slope_b = slopes(w, b, weights)
            w, b = w + matrix @ slope_w, b + jnp.exp(rule.log_bias_rate) * slope_b
        np.testing.assert_allclose(got[m], query @ w + b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("routing", ["mixture", "best"])
def test_adaptation_begins_at_what_the_chosen_expert_knows(
    specialists: MetaSpecialistClassifier, tasks: ArrayTasks, routing: Any
) -> None:
    """Steps of no length, without the offset, leave the chosen expert's own classes."""
    model = specialists.state_.model
    assert isinstance(model, SharedHierarchy)
    experts: Any = model.experts
    stuck = eqx.tree_at(
        lambda h: (
            *(h.adaptation.log_rates, h.adaptation.log_bias_rate),
            *(h.experts.directions, h.experts.offset),
        ),
        model,
        (
            *(jnp.full_like(model.adaptation.log_rates, -jnp.inf), jnp.asarray(-jnp.inf)),
            *(jnp.zeros_like(experts.directions), jnp.zeros_like(experts.offset)),
        ),
    )
    unmoved = evaluate(stuck, ScaledTasks(tasks, specialists.scale_), 250, routing=routing)
    own = specialists.evaluate(tasks, 250, inner_steps=0, routing="best")
    np.testing.assert_array_equal(unmoved.scores, own.scores)
    moved = specialists.evaluate(tasks, 250, routing=routing)
    assert np.mean(moved.scores != own.scores) > 0.1


def test_the_nearest_centre_is_chosen() -> None:
    selector = NearestCentre(jnp.asarray([[0.0, 0.0], [1.0, 1.0], [4.0, 0.0]]))
    assert int(jnp.argmax(selector(jnp.asarray([0.9, 0.6])))) == 1


def test_images_get_experts_that_share_a_convolutional_block(
    specialists: MetaSpecialistClassifier,
) -> None:
    model = specialists.state_.model
    assert isinstance(model, SharedHierarchy)
    assert model.adaptation.steps == 10
    assert model.trunk.weight.shape == (9, 8)


def test_experts_know_families_before_and_classes_after_adaptation(
    specialists: MetaSpecialistClassifier, tasks: ArrayTasks
) -> None:
    """A task's other class is of another family three times out of four."""
    before = specialists.evaluate(tasks, 300, inner_steps=0).mean
    after = specialists.evaluate(tasks, 300).mean
    assert before > 0.7
    assert after > 0.95
    assert specialists.information(tasks, 300).selector > 1.0


def test_selection_does_not_collapse_and_follows_the_families(
    specialists: MetaSpecialistClassifier, tasks: ArrayTasks
) -> None:
    """Classes of one family, as positives, go to the same expert; other families elsewhere."""
    assert specialists.information(tasks, 300, split="train").effective_experts > 3.0
    x = np.asarray(tasks.x).reshape(N_FAMILIES, N_PER_FAMILY, N_DRAWINGS, SIDE, SIDE)
    shown = x[:, :, :2].reshape(-1, 2, SIDE, SIDE)
    shares = specialists.responsibilities(shown, np.ones((len(shown), 2), int))
    families = shares.reshape(N_FAMILIES, N_PER_FAMILY, 4).mean(axis=1)
    marginal = families.mean(axis=0)
    bits = np.mean(np.sum(families * np.log2(np.maximum(families, 1e-9) / marginal), axis=1))
    assert bits > 0.8


@pytest.fixture
def task(tasks: ArrayTasks) -> TaskInput:
    x = np.asarray(tasks.x)
    support = Samples(jnp.asarray(x[[0, 1, 200, 201]]), jnp.asarray([1, 1, 0, 0]))
    return TaskInput(support, jnp.asarray(x[5:9]))


def test_the_selector_sees_positives_alone_in_any_order(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    select = eqx.filter_jit(specialists.hierarchy().select)
    other = Samples(
        task.support.x.at[2:].set(0.5)[jnp.asarray([3, 1, 2, 0])], jnp.asarray([0, 1, 0, 1])
    )
    np.testing.assert_allclose(
        select(task).probs, select(TaskInput(other, task.query)).probs, atol=1e-5
    )


def test_without_steps_the_initial_head_answers(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    hierarchy = specialists.hierarchy(0)
    found = eqx.filter_jit(hierarchy)(task).answers

    @eqx.filter_jit
    def alone(expert: FeatureExpert) -> jax.Array:
        return expert(hierarchy.trunk(task.query)).log_probs

    for m in range(4):
        expert = jax.tree.map(lambda leaf, m=m: leaf[m], hierarchy.experts)
        np.testing.assert_allclose(found.log_probs[m], alone(expert), rtol=1e-4, atol=1e-5)


def test_the_answer_is_the_mixture_of_adapted_experts(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    """p(y|x) = Σ p(m|x) p(y|x, m), summed by hand."""
    hierarchy, (support, query) = specialists.hierarchy(), task
    decision = eqx.filter_jit(hierarchy)(task)
    adapted = specialists.adapt(support.x, support.y)
    by_hand = np.einsum("m,mqy->qy", adapted.responsibilities_, np.asarray(decision.answers.probs))
    mixed = eqx.filter_jit(answers)(hierarchy, task, "mixture")
    np.testing.assert_allclose(mixed.probs, by_hand, atol=1e-5)
    np.testing.assert_allclose(adapted.predict_proba(query), by_hand, atol=1e-4)


def test_answers_depend_on_neither_order_nor_other_queries(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    support, query = task
    order = jnp.asarray([2, 0, 3, 1])
    turned = TaskInput(Samples(support.x[order], support.y[order]), query[:1])
    ask = eqx.filter_jit(specialists.hierarchy())
    np.testing.assert_allclose(
        ask(turned).answers.log_probs, ask(task).answers.log_probs[:, :1], rtol=1e-3, atol=1e-4
    )


def test_the_best_expert_alone_answers_as_in_the_committee(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    hierarchy = specialists.hierarchy()
    best = jnp.argmax(eqx.filter_jit(hierarchy.select)(task).log_probs)
    together = eqx.filter_jit(hierarchy)(task).answers.log_probs
    alone = eqx.filter_jit(hierarchy.expert(best))(task).log_probs
    np.testing.assert_allclose(alone, together[best], atol=1e-4)


def test_adapting_gives_an_ordinary_classifier_with_labels_of_any_type(
    specialists: MetaSpecialistClassifier, tasks: ArrayTasks
) -> None:
    x = np.asarray(tasks.x).reshape(-1, N_DRAWINGS, SIDE, SIDE)
    support, query = (np.concatenate([x[0, part], x[30, part]]) for part in np.s_[:2, 4:])
    labels, asked = np.repeat(["this", "other"], 2), np.repeat(["this", "other"], N_DRAWINGS - 4)
    adapted = clone(specialists.adapt(support, labels)).fit(support, labels)
    assert adapted.classes_.tolist() == ["other", "this"]
    assert adapted.score(query, asked) > 0.9
    np.testing.assert_allclose(adapted.predict_proba(query).sum(axis=1), 1.0)
    # The larger label is the class that the selector sees.
    codes = (labels == "this").astype(int)
    found = specialists.adapt(support, codes).predict(query)
    np.testing.assert_array_equal(found == 1, adapted.predict(query) == "this")
    share = specialists.responsibilities(support, codes)
    np.testing.assert_array_equal(share, adapted.responsibilities_)


def test_bad_support_sets_are_refused(
    specialists: MetaSpecialistClassifier, task: TaskInput
) -> None:
    x = np.asarray(task.support.x)
    with pytest.raises(ValueError, match=r"each of 2 classes, .* but got 1: \[1\]"):
        specialists.adapt(x, [1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"label for each of the 4 samples, but got 3"):
        specialists.adapt(x, [1, 0, 0])
    with pytest.raises(ValueError, match=r"samples of shape \(14, 14\), .* \(4, 7, 14\)"):
        specialists.adapt(x[:, ::2], [1, 1, 0, 0])
    with pytest.raises(ValueError, match="`inner_steps` must be an integer of at least 0"):
        specialists.adapt(x, [1, 1, 0, 0], inner_steps=-1)


def test_information_is_measured_in_training_tasks(
    specialists: MetaSpecialistClassifier,
) -> None:
    # Four experts are two bits. Two classes are one bit, more of which nobody can tell.
    assert 1.0 < specialists.information_.selector <= 2.0
    assert 0.0 < specialists.information_.experts < 1.0


def test_a_saved_learner_answers_as_before(
    specialists: MetaSpecialistClassifier, tasks: ArrayTasks, tmp_path: Path
) -> None:
    specialists.save(tmp_path / "experts.pin")
    again = load(tmp_path / "experts.pin")
    assert again.information_.selector == specialists.information_.selector
    np.testing.assert_array_equal(
        again.evaluate(tasks, 250).scores, specialists.evaluate(tasks, 250).scores
    )


def test_only_a_new_selector_warms_up(tasks: ArrayTasks) -> None:
    """β₁ falls from ten times its value, within half of the steps; the division is uneven."""

    def seen(learner: MetaSpecialistClassifier) -> tuple[float, float]:
        info = learner.fit(tasks).history_[0].info
        return float(info.beta[0][0]), float(info.information[0][0])

    still = SMALL | {"max_iter": 1, "learning_rate": 0.0}
    learner = MetaSpecialistClassifier(4, beta_selector=7.0, warm_start=True, **still)
    beta, bits = seen(learner)
    assert beta == pytest.approx(70.0)
    again, own_bits = seen(learner)
    assert again == pytest.approx(7.0)
    assert bits > 2 * own_bits


def test_all_experts_learn_to_adapt_and_the_responsible_one_its_initial_head(
    tasks: ArrayTasks,
) -> None:
    """A step with a selector that is sure of the first of four experts."""
    learner = MetaSpecialistClassifier(4, max_iter=1, warm_start=True, **SMALL).fit(tasks)

    def last(state: Any) -> Any:
        layer = state.model.selector.network.layers[-1]
        return layer.weight, layer.bias

    sure = (jnp.zeros_like(last(learner.state_)[0]), jnp.asarray([60.0, 0.0, 0.0, 0.0]))
    learner.state_ = eqx.tree_at(last, learner.state_, sure)
    before = learner.state_.model.experts
    after = learner.fit(tasks).state_.model.experts
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b), after, before)
    assert np.all(moved.directions.max(axis=(1, 2)) > 1e-4)
    assert moved.weight[0].max() > 1e-4
    assert moved.weight[1:].max() < 1e-9


def test_three_classes_of_colour_images(tasks: ArrayTasks, tmp_path: Path) -> None:
    """Only one of three colours tells classes apart."""
    x = np.asarray(tasks.x)
    noise = np.random.default_rng(1).random((2, *x.shape)).astype(np.float32)
    colours = np.stack([noise[0], x, noise[1]], axis=-1)
    three = ArrayTasks(colours, LABELS, ways=3, shots=1, queries=2, test=0.25)
    learner = MetaSpecialistClassifier(2, max_iter=60, **TINY).fit(three)
    assert learner.evaluate(three, 250).mean > 0.7
    assert learner.state_.model.experts.weight.shape[-1] == 3
    learner.save(tmp_path / "three.pin")
    again = load(tmp_path / "three.pin").evaluate(three, 250).scores
    np.testing.assert_array_equal(again, learner.evaluate(three, 250).scores)


def test_convolutional_experts_may_have_a_block_each(tasks: ArrayTasks) -> None:
    three = ArrayTasks(tasks.x, LABELS, ways=3, shots=1, queries=2, test=0.25)
    own = TINY | {"adaptation": "last_layer", "batch_size": 8}
    learner = MetaSpecialistClassifier(2, max_iter=60, **own).fit(three)
    assert learner.state_.model.experts.initial.network.features.weight.shape == (2, 9, 4)
    assert learner.evaluate(three, 250).mean > 0.8


def test_images_may_also_be_vectors_to_perceptrons(tasks: ArrayTasks) -> None:
    learner = MetaSpecialistClassifier(
        1, expert="mlp", max_iter=60, batch_size=8, random_state=0
    ).fit(tasks)
    assert learner.evaluate(tasks, 250).mean > 0.8


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(
    "selector", [{"selector": "kmeans"}, {"embedding": "autoencoder", "embedding_pool": "mean"}]
)
def test_tasks_may_be_told_apart_by_an_autoencoder(
    tasks: ArrayTasks, selector: dict[str, Any], tmp_path: Path
) -> None:
    """Four families are 2 bits, whoever learns by them; what is fixed is stored as well."""
    learner = MetaSpecialistClassifier(
        4, max_iter=200, autoencoder_iter=200, **SMALL, **selector
    ).fit(tasks)
    assert learner.information_.selector > 1.2
    assert learner.evaluate(tasks, 250).mean > 0.9
    learner.save(tmp_path / "experts.pin")
    again = load(tmp_path / "experts.pin").evaluate(tasks, 250).scores
    np.testing.assert_array_equal(again, learner.evaluate(tasks, 250).scores)
