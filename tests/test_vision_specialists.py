"""Shared specialists: what the kernel form stands for, and what they learn."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PyTree
from sklearn.base import clone

from pinfactory.core.families import Categorical
from pinfactory.meta import MetaSpecialistClassifier
from pinfactory.meta.evaluation import answers
from pinfactory.meta.experts import Question
from pinfactory.meta.tasks import ArrayTasks, Samples
from pinfactory.persistence import load
from pinfactory.vision import ImageSpecialists, one_block_experts
from pinfactory.vision._learning import crisp, likelihood
from pinfactory.vision._selection import NearestCentre, PositivesEncoder
from pinfactory.vision._specialists import FINE, Craft, KernelSteps

SIDE, N_FAMILIES, N_PER_FAMILY, N_DRAWINGS = 28, 4, 8, 12


@pytest.fixture(scope="module")
def tasks() -> ArrayTasks:
    """Classes of four families: a family has its stroke in common, a class a place of a dot."""
    random = np.random.default_rng(0)
    shape = (N_FAMILIES, N_PER_FAMILY, N_DRAWINGS, SIDE, SIDE)
    images = 0.1 * random.random(shape).astype(np.float32)
    images[0, :, :, 13:15] += 0.8
    images[1, :, :, :, 13:15] += 0.8
    images[2] += 0.8 * np.eye(SIDE, dtype=np.float32)
    images[3] += 0.8 * np.eye(SIDE, dtype=np.float32)[::-1]
    for number in range(N_PER_FAMILY):
        row, column = divmod(number, 4)
        images[:, number, :, 4 + 15 * row : 8 + 15 * row, 6 * column + 2 : 6 * column + 6] += 0.8
    labels = np.repeat(np.arange(N_FAMILIES * N_PER_FAMILY), N_DRAWINGS)
    flat = np.clip(images, 0, 1).reshape(-1, SIDE, SIDE)
    return ArrayTasks(flat, labels, ways=2, shots=2, queries=4, test=0.25)


@pytest.fixture(scope="module")
def specialists(tasks: ArrayTasks) -> ImageSpecialists:
    return ImageSpecialists(4, max_iter=300, filters=8, rank=4).fit(tasks)


def test_kernel_steps_are_gradient_steps_on_the_head(rng: np.random.Generator) -> None:
    """The same ten steps on weights themselves, by automatic differentiation."""
    n_features, n_support, n_query, rank = 6, 4, 3, 2

    def random(tree: PyTree) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), tree)

    experts = random(Craft.start(2, n_features, rank, key=jax.random.key(0)))
    rule = random(KernelSteps.start(n_features))
    support, query = (jnp.asarray(rng.normal(size=(n, n_features))) for n in (n_support, n_query))
    labels = jnp.asarray([1, 1, 0, 0])
    got = rule(experts, support, labels, query)
    for m in range(2):
        directions = FINE * experts.directions[m]
        matrix = jnp.diag(jnp.exp(rule.log_rates)) + directions @ directions.T
        weights = jnp.exp(experts.log_weights[m])[labels]

        def utility(w: jax.Array, b: jax.Array, weights: jax.Array = weights) -> jax.Array:
            sign = 2 * labels - 1
            return jnp.mean(weights * jax.nn.log_sigmoid(sign * (support @ w + b)))

        w, b = jnp.zeros(n_features), experts.offset[m]
        for _ in range(10):
            slope_w, slope_b = jax.grad(utility, argnums=(0, 1))(w, b)
            w, b = w + matrix @ slope_w, b + jnp.exp(rule.log_bias_rate) * slope_b
        np.testing.assert_allclose(got[m], query @ w + b, rtol=1e-3, atol=1e-3)


def test_likelihood_is_ordered_by_sample_then_expert() -> None:
    logits = jnp.asarray([[[1.0, -2.0], [3.0, 4.0]]])
    got = likelihood(logits, jnp.asarray([[1, 0]]))
    expected = np.log(1 / (1 + np.exp(-np.asarray([[1.0, 3.0], [2.0, -4.0]]))))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_faint_selection_becomes_a_clear_and_even_division(rng: np.random.Generator) -> None:
    """Whoever is liked a little more in a task gets it, however well liked they are in general."""
    liking, popularity = rng.normal(size=(2000, 4)), np.asarray([0.0, 3.0, -3.0, 1.0])
    got = crisp(Categorical.from_logits(jnp.asarray(0.01 * liking + popularity)))
    entropy = float(jnp.mean(got.entropy()))
    assert entropy < 0.5 * np.log(4)
    np.testing.assert_allclose(jnp.mean(got.probs, axis=0), 0.25, atol=0.02)
    assert np.mean(np.argmax(got.probs, axis=1) == np.argmax(liking, axis=1)) > 0.95


def test_one_task_alone_is_divided_evenly() -> None:
    got = crisp(Categorical.from_logits(jnp.asarray([[1.0, -2.0, 0.5]])))
    np.testing.assert_allclose(got.probs, np.full((1, 3), 1 / 3), rtol=1e-4)


@pytest.mark.parametrize("pool", ["max", "mean", "min"])
def test_the_selector_sees_positives_alone_in_any_order(
    rng: np.random.Generator, pool: Any
) -> None:
    encoder = PositivesEncoder.start(key=jax.random.key(0), pool=pool)
    x = jnp.asarray(rng.random((4, 28, 28)), jnp.float32)
    code = encoder(Samples(x, jnp.asarray([1, 1, 0, 0])))
    other = x.at[2:].set(0.5)
    again = encoder(Samples(other[jnp.asarray([3, 1, 2, 0])], jnp.asarray([0, 1, 0, 1])))
    np.testing.assert_allclose(code, again, atol=1e-5)
    assert code.shape == (encoder.size,)


def test_the_nearest_centre_is_chosen() -> None:
    selector = NearestCentre(jnp.asarray([[0.0, 0.0], [1.0, 1.0], [4.0, 0.0]]))
    assert int(jnp.argmax(selector(jnp.asarray([0.9, 0.6])))) == 1


def test_experts_know_families_before_and_classes_after_adaptation(
    specialists: ImageSpecialists, tasks: ArrayTasks
) -> None:
    """A task's other class is of another family three times out of four."""
    before = specialists.evaluate(tasks, 300, inner_steps=0).mean
    after = specialists.evaluate(tasks, 300).mean
    assert before > 0.7
    assert after > 0.95
    assert specialists.information(tasks, 300).selectors[0] > 1.0


def test_selection_does_not_collapse(specialists: ImageSpecialists, tasks: ArrayTasks) -> None:
    assert specialists.information(tasks, 300, split="train").effective_experts > 3.0


@pytest.fixture
def question(tasks: ArrayTasks) -> Question:
    x = np.asarray(tasks.x)
    support = Samples(jnp.asarray(x[[0, 1, 200, 201]]), jnp.asarray([1, 1, 0, 0]))
    return Question(support, jnp.asarray(x[5:9]))


def test_without_steps_the_family_is_all_that_is_known(
    specialists: ImageSpecialists, question: Question
) -> None:
    hierarchy = specialists.hierarchy_.with_steps(0)
    features = hierarchy.trunk(question.query)
    found = hierarchy(question).answers
    for m in range(4):
        expert = jax.tree.map(lambda leaf, m=m: leaf[m], hierarchy.experts)
        np.testing.assert_allclose(
            found.log_probs[m], expert(features).log_probs, rtol=1e-4, atol=1e-5
        )


def test_the_answer_is_the_mixture_of_adapted_experts(
    specialists: ImageSpecialists, question: Question
) -> None:
    """p(y|x) = Σ p(m|x) p(y|x, m), summed by hand."""
    hierarchy, (support, query) = specialists.hierarchy_, question
    decision = eqx.filter_jit(hierarchy)(question)
    share = np.asarray(specialists.responsibilities(support.x, support.y))
    by_hand = np.einsum("m,mqy->qy", share, np.asarray(decision.answers.probs))
    got = answers(hierarchy, question, "mixture")
    np.testing.assert_allclose(got.probs, by_hand, atol=1e-5)
    labels = specialists.predict(support.x, support.y, query)
    np.testing.assert_array_equal(labels, by_hand.argmax(axis=1))


def test_answers_depend_on_neither_order_nor_other_queries(
    specialists: ImageSpecialists, question: Question
) -> None:
    support, query = question
    order = jnp.asarray([2, 0, 3, 1])
    turned = Question(Samples(support.x[order], support.y[order]), query[:1])
    ask = eqx.filter_jit(specialists.hierarchy_)
    expected, got = ask(question), ask(turned)
    np.testing.assert_allclose(
        got.selections[0].log_probs, expected.selections[0].log_probs, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(
        got.answers.log_probs, expected.answers.log_probs[:, :1], rtol=1e-3, atol=1e-4
    )


def test_the_best_expert_alone_answers_as_in_the_committee(
    specialists: ImageSpecialists, question: Question
) -> None:
    hierarchy = specialists.hierarchy_
    together = eqx.filter_jit(hierarchy)(question).answers.log_probs
    alone = eqx.filter_jit(hierarchy.expert(jnp.asarray(2)))(question).log_probs
    np.testing.assert_allclose(alone, together[2], atol=1e-4)


def test_adapting_gives_an_ordinary_classifier_with_labels_of_any_type(
    specialists: ImageSpecialists, tasks: ArrayTasks
) -> None:
    x = np.asarray(tasks.x).reshape(-1, N_DRAWINGS, SIDE, SIDE)
    support, query = (np.concatenate([x[0, part], x[30, part]]) for part in np.s_[:2, 4:])
    labels, asked = np.repeat(["this", "other"], 2), np.repeat(["this", "other"], N_DRAWINGS - 4)
    adapted = clone(specialists.adapt(support, labels)).fit(support, labels)
    assert adapted.classes_.tolist() == ["other", "this"]
    assert adapted.score(query, asked) > 0.9
    np.testing.assert_allclose(adapted.predict_proba(query).sum(axis=1), 1.0)
    # The larger label is the class to be recognised.
    codes = (labels == "this").astype(int)
    found = specialists.predict(support, codes, query)
    np.testing.assert_array_equal(found == 1, adapted.predict(query) == "this")
    share = specialists.responsibilities(support, codes)
    np.testing.assert_array_equal(share, adapted.responsibilities_)
    assert share.sum() == pytest.approx(1.0)


def test_bad_support_sets_are_refused(specialists: ImageSpecialists, question: Question) -> None:
    x = np.asarray(question.support.x)
    with pytest.raises(ValueError, match=r"each of 2 classes, .* but got 1: \[1\]"):
        specialists.adapt(x, [1, 1, 1, 1])
    with pytest.raises(ValueError, match=r"label for each of the 4 samples, but got 3"):
        specialists.adapt(x, [1, 0, 0])
    with pytest.raises(ValueError, match=r"samples of shape \(28, 28\), .* \(4, 14, 28\)"):
        specialists.adapt(x[:, ::2], [1, 1, 0, 0])
    with pytest.raises(ValueError, match="`inner_steps` must be an integer of at least 0"):
        specialists.adapt(x, [1, 1, 0, 0], inner_steps=-1)


def test_information_is_measured_in_training_tasks(
    specialists: ImageSpecialists, tasks: ArrayTasks
) -> None:
    again = specialists.information(tasks, split="train")
    assert specialists.information_.selector == pytest.approx(float(again.selectors[0]), abs=1e-4)
    # Two classes are one bit, and nobody can tell more of an image than that.
    assert 0.0 < specialists.information_.experts < 1.0


def test_a_saved_learner_answers_as_before(
    specialists: ImageSpecialists, tasks: ArrayTasks, tmp_path: Path
) -> None:
    specialists.save(tmp_path / "experts.pin")
    again = load(tmp_path / "experts.pin")
    assert again.information_.selector == specialists.information_.selector
    np.testing.assert_array_equal(
        again.evaluate(tasks, 250).scores, specialists.evaluate(tasks, 250).scores
    )


def test_a_warm_start_goes_on_from_what_was_learned(tasks: ArrayTasks) -> None:
    learner = ImageSpecialists(2, max_iter=1, filters=4, rank=2, learning_rate=0.0).fit(tasks)
    first = learner.hierarchy_.trunk.weight
    marked = eqx.tree_at(lambda h: h.trunk.weight, learner.hierarchy_, first + 1.0)
    learner.hierarchy_ = marked
    np.testing.assert_allclose(learner.fit(tasks).hierarchy_.trunk.weight, first)
    learner.hierarchy_ = marked
    again = learner.set_params(warm_start=True).fit(tasks)
    np.testing.assert_allclose(again.hierarchy_.trunk.weight, first + 1.0)


def test_only_a_new_selector_is_given_a_division_and_cheap_information(tasks: ArrayTasks) -> None:
    """β₁ falls from ten times its value, within half of the steps; a division is no even choice."""
    small: dict[str, Any] = {"max_iter": 1, "filters": 4, "rank": 2, "learning_rate": 0.0}

    def seen(learner: ImageSpecialists) -> tuple[float, float]:
        info = learner.fit(tasks).history_[0].info
        return float(info.beta[0][0]), float(info.information[0][0])

    learner = ImageSpecialists(4, beta_selector=7.0, warm_start=True, **small)
    beta, bits = seen(learner)
    assert beta == pytest.approx(70.0)
    again, own_bits = seen(learner)
    assert again == pytest.approx(7.0)
    assert bits > 2 * own_bits


def test_all_experts_learn_to_adapt_and_the_responsible_one_learns_its_family(
    tasks: ArrayTasks,
) -> None:
    """A step with a selector that is sure of the first of two experts."""
    learner = ImageSpecialists(2, max_iter=1, filters=4, rank=2, warm_start=True).fit(tasks)

    def last(hierarchy: Any) -> Any:
        layer = hierarchy.selector.network.layers[-1]
        return layer.weight, layer.bias

    sure = (jnp.zeros_like(last(learner.hierarchy_)[0]), jnp.asarray([30.0, -30.0]))
    before = eqx.tree_at(last, learner.hierarchy_, sure)
    learner.hierarchy_ = before
    after = learner.fit(tasks).hierarchy_
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b), after.experts, before.experts)
    assert np.all(moved.directions.max(axis=(1, 2)) > 1e-4)
    assert moved.weight[0].max() > 1e-4
    assert moved.weight[1].max() < 1e-9


def test_more_than_two_classes_are_refused() -> None:
    three = ArrayTasks(np.zeros((60, 28, 28)), np.repeat([0, 1, 2], 20), ways=3, shots=1, test=0.0)
    with pytest.raises(ValueError, match=r"labels 0 and 1, but got .* \[0, 1, 2\]"):
        ImageSpecialists(max_iter=1).fit(three)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"selection": "dice"}, "`selection` must be one of 'free energy', 'k-means'"),
        ({"embedding": "eyes"}, "`embedding` must be one of 'learned', 'autoencoder'"),
        ({"embedding_pool": "sum"}, "`embedding_pool` must be one of 'max', 'mean', 'min'"),
        ({"n_experts": 0}, "`n_experts` must be an integer of at least 1, but got 0"),
        ({"beta_selector": 0.0}, "`beta_selector` must be a number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tasks: ArrayTasks, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSpecialists(**wrong).fit(tasks)


def test_committees_with_blocks_learn_tasks_of_three_classes(tasks: ArrayTasks) -> None:
    labels = np.repeat(np.arange(N_FAMILIES * N_PER_FAMILY), N_DRAWINGS)
    three = ArrayTasks(tasks.x, labels, ways=3, shots=1, queries=2, test=0.25)
    experts = one_block_experts(three, filters=4)
    learner = MetaSpecialistClassifier(2, expert=experts, max_iter=60, batch_size=8, random_state=0)
    assert learner.fit(three).evaluate(three, 250).mean > 0.8
    with pytest.raises(ValueError, match=r"shape \(28, 28\) of the tasks .* but got \(14, 14\)"):
        experts((14, 14), 3, key=jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection", [{"selection": "k-means"}, {"embedding": "autoencoder", "embedding_pool": "mean"}]
)
def test_tasks_may_be_told_apart_by_an_autoencoder(
    tasks: ArrayTasks, selection: dict[str, Any], tmp_path: Path
) -> None:
    """Four families are 2 bits, whoever learns by them; what is fixed is stored as well."""
    learner = ImageSpecialists(
        4, max_iter=200, filters=8, rank=4, autoencoder_iter=200, **selection
    ).fit(tasks)
    assert learner.information(tasks, 300, split="train").selectors[0] > 1.2
    assert learner.evaluate(tasks, 250).mean > 0.9
    learner.save(tmp_path / "experts.pin")
    again = load(tmp_path / "experts.pin").evaluate(tasks, 250).scores
    np.testing.assert_array_equal(again, learner.evaluate(tasks, 250).scores)
