"""Algorithm 1: experts learn from support sets, the selector from how they do on query sets."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from pinfactory.core.constraints import Constraints, Priors
from pinfactory.core.families import Categorical, Family, Gaussian
from pinfactory.core.hierarchy import Expert, Hierarchy, repeat_answers
from pinfactory.core.learning import Info, Learner, State, Utility, scan
from pinfactory.core.objective import Objective, free_energy
from pinfactory.meta.adaptation import StepwiseAdaptation
from pinfactory.meta.experts import Embedding, Histogram, MetaExpert, TaskInput, pooled
from pinfactory.meta.tasks import Episode, Samples
from pinfactory.vision import Autoencoder, OneBlock

Rows = Float[Array, "n q"]


# ----------------------------------------------------------------------------- what selects


class BinnedTargets(Embedding):
    """The mean target in every bin of the input and nothing else; 0 where a bin is empty."""

    histogram: Histogram

    @property
    def size(self) -> int:
        return self.histogram.bins * self.histogram.targets

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        return self.histogram(support)[: self.size]


class PositiveCodes(Embedding):
    """The maximum of an autoencoder's codes of the positive samples (Section 5.1).

    No gradient of the selector reaches the autoencoder: it learns by reconstruction.
    """

    autoencoder: Autoencoder
    labels: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.autoencoder.encoder.size

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        codes = jax.lax.stop_gradient(self.autoencoder.encoder(support.x))
        return pooled(codes, self.positive(support.y), "max")

    def positive(self, labels: Array) -> Array:
        """Return which samples are positive."""
        return jnp.isin(labels, jnp.asarray(self.labels))

    def error(self, samples: Samples) -> Float[Array, ""]:
        """Return the mean squared error with which positive samples are given back."""
        square = (self.autoencoder.reconstruct(samples.x) - samples.x) ** 2
        of_sample = square.reshape(len(square), -1).mean(axis=1)
        counts = self.positive(samples.y)
        return jnp.sum(jnp.where(counts, of_sample, 0.0)) / jnp.maximum(jnp.sum(counts), 1)


class Dropout(eqx.Module):
    """Sets numbers to zero at random where there is a key, which is in training alone."""

    rate: float = eqx.field(static=True)

    def __call__(self, x: Array, *, key: Key[Array, ""] | None = None) -> Array:
        return eqx.nn.Dropout(self.rate, inference=key is None)(x, key=key)


class MaxNormLearner(Learner):
    """Adam, after each step of which weights into a unit of the selector are cut to a length."""

    max_norm: float = eqx.field(static=True, default=2.0)

    def step(self, key: Key[Array, ""], state: State, batch: Any) -> tuple[State, Any]:
        new, info = super().step(key, state, batch)
        layers = [n for n, layer in enumerate(_layers(new)) if isinstance(layer, eqx.nn.Linear)]

        def weights(state: Any) -> Any:
            return [_layers(state)[n].weight for n in layers]

        return eqx.tree_at(weights, new, list(map(self._cut, weights(new)))), info

    def _cut(self, weight: Float[Array, "a b"]) -> Float[Array, "a b"]:
        length = jnp.linalg.norm(weight, axis=1, keepdims=True)
        return weight * jnp.minimum(1.0, self.max_norm / jnp.maximum(length, 1e-12))


def _layers(state: Any) -> Any:
    return state.model.selector.network.layers


# ------------------------------------------------------------------------------- what answers


class PlainBlock(eqx.Module):
    """One strided convolution, batch normalisation, ReLU, flattened; nothing is pooled."""

    block: OneBlock

    def __call__(self, image: Array, *, key: Key[Array, ""] | None = None) -> Float[Array, " f"]:
        return self.block.active(image).ravel()


def gaussian_of_log_variance(outputs: Float[Array, " outputs"]) -> Gaussian:
    """Read the first half of a network's outputs as means, the second as log-variances."""
    mean, log_variance = jnp.split(outputs, 2, axis=-1)
    return Gaussian(mean, 0.5 * log_variance)


class SupportLoss(eqx.Module):
    """Minus the mean utility of an expert's answers to a support set."""

    utility: Utility = eqx.field(static=True)

    def __call__(
        self, expert: Callable[..., Family], state: State, batch: Samples, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[None, None]]:
        return -jnp.mean(jax.vmap(self.utility)(jax.vmap(expert)(batch.x), batch.y)), (None, None)


class AdamSteps(StepwiseAdaptation):
    """Steps of Adam on the support set that begin at the expert itself ("10 gradient updates")."""

    utility: Utility = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)

    def __call__(self, expert: Expert, support: Samples) -> Expert:
        learner = Learner(SupportLoss(self.utility))
        state = learner.init(expert, learning_rate=self.rate)

        def step(state: State, _: None) -> tuple[State, None]:
            return learner.step(jax.random.key(0), state, support)[0], None

        return scan(step, state, None, self.steps)[0].model


# -------------------------------------------------------------------------------- how they learn


class AlgorithmOneLoss(eqx.Module):
    """The three updates of Algorithm 1 as one loss; each reaches parameters of its own.

    An expert is sampled for every task from p(m | support set). It climbs its free energy on the
    support set; the selector climbs the expert's free energy on the query set, by the score
    function; an autoencoder, if there is one, learns from the positive samples of both.
    """

    utility: Utility = eqx.field(static=True)

    def __call__(
        self, model: Hierarchy, state: State, batch: Episode, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Constraints, Info]]:
        known, n_tasks = state.constraints, len(batch.support.x)
        choice_key, *keys = jax.random.split(key, n_tasks + 1)
        inputs = TaskInput(batch.support, batch.support.x)
        selection = jax.vmap(lambda x, k: model.select(x, key=k))(inputs, jnp.stack(keys))
        chosen = selection.sample(choice_key)

        def asked(m: Array, episode: Episode) -> tuple[Family, Family]:
            expert = cast(MetaExpert, model.expert(m)).initial
            return jax.vmap(expert)(episode.support.x), jax.vmap(expert)(episode.query.x)

        on_support, on_query = jax.vmap(asked)(chosen, batch)
        priors = _updated(known.priors, selection, chosen, on_support)
        of_chosen = jax.tree.map(lambda leaf: leaf[chosen][:, None], priors.stages[1].family)
        evaluate = partial(self._free_energy, prior=of_chosen, beta=known.betas[1])
        learned, _, _ = evaluate(on_support, batch.support.y)
        # The free energy on the query set teaches the selector alone.
        found = jax.lax.stop_gradient(evaluate(on_query, batch.query.y))
        on_new, utility, cost = (jnp.mean(rows, axis=1) for rows in found)
        log_prob = selection.log_prob(chosen)
        ratio = log_prob - priors.stages[0].family.log_prob(chosen)
        value = (on_new - ratio / known.betas[0]) * jnp.exp(
            log_prob - jax.lax.stop_gradient(log_prob)
        )
        loss = -jnp.mean(learned) - jnp.mean(value) + _reconstruction(model, batch)
        weights = jnp.full(n_tasks, 1.0 / n_tasks)
        info = Info.of(Objective(value, utility, (ratio, cost)), weights, known)
        return loss, (Constraints(priors, known.resources), info)

    def _free_energy(
        self, answers: Family, target: Array, *, prior: Family, beta: Array
    ) -> tuple[Rows, Rows, Rows]:
        """Return free energy, utility and information of every answer of every task."""
        utility = jax.vmap(jax.vmap(self.utility))(answers, target)
        return free_energy(utility, answers, prior, beta), utility, answers.kl(prior)


def _updated(priors: Priors, selection: Categorical, chosen: Array, answers: Family) -> Priors:
    """Take in the selections, and for every expert its answers to the tasks that it got."""
    selector, expert = priors.stages
    n_tasks, n_samples = answers.batch_shape
    n_experts = selection.log_probs.shape[1]
    weights = jnp.full(n_tasks, 1.0 / n_tasks)
    mine = jax.nn.one_hot(chosen, n_experts) / (n_tasks * n_samples)

    given = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), answers)
    of_all = repeat_answers(given, n_experts)
    shares = jnp.repeat(mine, n_samples, axis=0)
    return Priors((selector.update(selection, weights), expert.update(of_all, shares)))


def _reconstruction(model: Hierarchy, batch: Episode) -> Float[Array, ""]:
    embedding = model.selector.embedding  # type: ignore[attr-defined]
    if not isinstance(embedding, PositiveCodes):
        return jnp.zeros(())
    together = [Samples(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in part)) for part in batch]
    joined = Samples(*map(jnp.concatenate, zip(*together, strict=True)))
    return embedding.error(joined)
