"""Experts for families of characters: features in common, knowledge and adaptation of their own."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision, Expert, Hierarchy
from pinfactory.meta.experts import Question

from ._blocks import OneBlock

# Numbers that multiply many features at once are stored larger than they act, by this factor: Adam
# moves all parameters by steps of about one size, which would be too far for these.
FINE = 0.1


class Craft(Expert):
    """What an expert has of its own: knowledge of a family of classes, and a way to adapt.

    Attributes
    ----------
    weight, bias
        A linear map of the features to the log-odds that an image is of the family, before any
        sample of the task is seen.
    directions
        V, along which the steps of the adaptation are longer. They begin at random, so that
        experts differ in what they take from a support set, and err in different tasks.
    offset
        The bias of the head before the first step.
    log_weights
        Logarithms of the weights of negatives and positives.
    """

    weight: Float[Array, "*m f"]
    bias: Float[Array, "*m"]
    directions: Float[Array, "*m f r"]
    offset: Float[Array, "*m"]
    log_weights: Float[Array, "*m 2"]

    @classmethod
    def start(cls, n_experts: int, n_features: int, rank: int, *, key: Key[Array, ""]) -> "Craft":
        """Return experts side by side that know little."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))

        def normal(scale: float, *shape: int) -> Array:
            numbers = random.normal(0.0, scale / np.sqrt(n_features), (n_experts, *shape))
            return jax.device_put(numbers.astype(np.float32))

        def zeros(*shape: int) -> Array:
            return jax.device_put(np.zeros((n_experts, *shape), np.float32))

        # Whatever their number, directions at first add 4 to the kernel of an image with itself.
        weight = normal(0.3, n_features)
        directions = normal(2.0 / FINE / np.sqrt(rank), n_features, rank)
        return cls(weight, zeros(), directions, zeros(), zeros(2))

    def __call__(
        self, x: Float[Array, "*n f"], *, key: Key[Array, ""] | None = None
    ) -> Categorical:
        return two_classes(FINE * (x @ self.weight) + self.bias)


class KernelSteps(eqx.Module):
    """Gradient steps on an expert's linear head by a learned rule.

    Every step goes up the utility of the support set, turned and stretched by a learned matrix:
    A = diag(a) + V Vᵀ, with step sizes a that all experts have in common and directions V of the
    expert. So a head after any number of steps is A Σ cₛ φ(xₛ), and only the coefficients c need
    be followed, with the kernel k(x, x′) = φ(x)ᵀ A φ(x′).

    Attributes
    ----------
    log_rates
        log a, the step sizes of the features.
    log_bias_rate
        The same for the bias.
    steps
        Number of steps; without any the knowledge answers as it is.
    """

    log_rates: Float[Array, " f"]
    log_bias_rate: Float[Array, ""]
    steps: int = eqx.field(static=True)

    @classmethod
    def start(cls, n_features: int, *, steps: int = 10, rate: float = 8.0) -> "KernelSteps":
        """Begin with equal rates; `rate` is the kernel of an image with itself by them."""
        log_rate = np.float32(np.log(rate / n_features))
        rates = jax.device_put(np.full(n_features, log_rate))
        return cls(rates, jax.device_put(log_rate), steps)

    def __call__(
        self,
        experts: Craft,
        support: Float[Array, "s f"],
        labels: Int[Array, " s"],
        query: Float[Array, "q f"],
    ) -> Float[Array, "m q"]:
        """Return the log-odds of the queries by experts side by side after adaptation."""
        n_support = len(support)
        kernel = self._kernels(experts, jnp.concatenate([support, query]), n_support)
        weights = jnp.exp(experts.log_weights)[:, labels] / n_support
        offset = experts.offset[:, None]

        def step(c: Float[Array, "m s"], _: None) -> tuple[Float[Array, "m s"], None]:
            logits = offset + jnp.einsum("mxs,ms->mx", kernel[:, :n_support], c)
            return c + weights * (labels - jax.nn.sigmoid(logits)), None

        c, _ = jax.lax.scan(step, jnp.zeros_like(weights), None, length=self.steps)
        return offset + jnp.einsum("mxs,ms->mx", kernel[:, n_support:], c)

    def _kernels(
        self, experts: Craft, features: Float[Array, "x f"], n_support: int
    ) -> Float[Array, "m x s"]:
        """Return the kernel of every expert between all samples and those of the support set."""
        shared = (features * jnp.exp(self.log_rates)) @ features[:n_support].T
        along = FINE * jnp.einsum("xf,mfr->xmr", features, experts.directions)
        own = jnp.einsum("xmr,smr->mxs", along, along[:n_support])
        return shared + own + jnp.exp(self.log_bias_rate)


class Answers(NamedTuple):
    """Log-odds of the queries by every expert, before and after adaptation."""

    before: Float[Array, "m q"]
    after: Float[Array, "m q"]


class SharedSpecialists(Hierarchy):
    """A hierarchy for two-class image tasks whose experts share features.

    Its answer is the mixture p(y|x) = Σ p(m|x) p(y|x, m): every expert that is responsible for a
    task adapts to it, and their answers are averaged.

    Attributes
    ----------
    trunk
        Maps images to features.
    adaptation
        Makes experts fit a support set.
    """

    trunk: OneBlock
    adaptation: KernelSteps

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Decision:
        """Return p(m|support) and p(y|x, m) of every query after adaptation."""
        answers = self.answers(x)
        return Decision((self.select(x),), two_classes(answers.after))

    def answers(self, x: Question) -> Answers:
        """Return what every expert answers.

        Knowledge learns from answers before adaptation, features and adaptation from those after
        it: else either would be bent to the other's purpose.
        """
        n_support, experts = len(x.support.x), self.experts
        assert isinstance(experts, Craft)
        features = self.trunk(jnp.concatenate([x.support.x, x.query]))
        support, query = features[:n_support], features[n_support:]
        before = FINE * (experts.weight @ jax.lax.stop_gradient(query).T) + experts.bias[:, None]
        if self.adaptation.steps == 0:
            return Answers(before, before)
        return Answers(before, self.adaptation(experts, support, x.support.y, query))

    def expert(self, m: Int[Array, ""]) -> "Expert | Hierarchy":
        """Return expert m with the features and the adaptation that it shares."""
        one = jax.tree.map(lambda leaf: leaf[m][None], self.experts)
        selector, available = self.selector, jnp.ones(1, bool)
        return Specialist(SharedSpecialists(selector, one, available, self.trunk, self.adaptation))

    def with_steps(self, steps: int) -> "SharedSpecialists":
        """Return the same experts with another number of steps of adaptation."""
        adaptation = dataclasses.replace(self.adaptation, steps=steps)
        return dataclasses.replace(self, adaptation=adaptation)


class Specialist(Expert):
    """One expert on its own."""

    alone: SharedSpecialists

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Categorical:
        return two_classes(self.alone.answers(x).after[0])


def two_classes(logit: Float[Array, "*n"]) -> Categorical:
    """Return the distribution over labels 0 and 1 with the given log-odds of 1."""
    return Categorical(jnp.stack([jax.nn.log_sigmoid(-logit), jax.nn.log_sigmoid(logit)], -1))
