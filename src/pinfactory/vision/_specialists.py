"""Experts for families of characters: one ancestor, own knowledge, small departures."""

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
# An expert departs from the common ancestor more slowly than the ancestor moves. Departures learn
# from the expert's own tasks alone, and faster ones follow the noise of these.
DEPARTURE = 0.1


class Knowledge(Expert):
    """What makes an expert: knowledge of a family of classes, and how it departs from all others.

    Attributes
    ----------
    weight, bias
        A linear map of the features to the log-odds that an image is of the family, before any
        sample of the task is seen.
    trust
        Weight of these log-odds in the adapted answer.
    offset, log_weights, directions
        Departures from those of `KernelSteps`, which all experts have in common; zero at first.
    """

    weight: Float[Array, "*m f"]
    bias: Float[Array, "*m"]
    trust: Float[Array, "*m"]
    offset: Float[Array, "*m"]
    log_weights: Float[Array, "*m 2"]
    directions: Float[Array, "*m f r"]

    @classmethod
    def start(
        cls, n_experts: int, n_features: int, rank: int, *, key: Key[Array, ""]
    ) -> "Knowledge":
        """Return experts side by side that know little, and adapt alike."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        weight = random.normal(0.0, 0.3 / np.sqrt(n_features), (n_experts, n_features))

        def zeros(*shape: int) -> Array:
            return jax.device_put(np.zeros((n_experts, *shape), np.float32))

        return cls(
            jax.device_put(weight.astype(np.float32)),
            zeros(),
            zeros(),
            zeros(),
            zeros(2),
            zeros(n_features, rank),
        )

    def __call__(
        self, x: Float[Array, "*n f"], *, key: Key[Array, ""] | None = None
    ) -> Categorical:
        return two_classes(FINE * (x @ self.weight) + self.bias)


class KernelSteps(eqx.Module):
    """Gradient steps on an expert's linear head by a learned rule.

    Every step goes up the utility of the support set, turned and stretched by a learned matrix:
    A = diag(a) + V Vᵀ. So a head after any number of steps is A Σ cₛ φ(xₛ), and only the
    coefficients c need be followed, with the kernel k(x, x′) = φ(x)ᵀ A φ(x′).

    What is learned here is the ancestor of all experts and learns from every task. An expert's
    own offset, weights and directions V are these plus its departures.

    Attributes
    ----------
    log_rates
        log a, the step sizes of the features.
    log_bias_rate
        The same for the bias.
    directions
        V, along which steps are longer.
    offset
        The bias of the head before the first step.
    log_weights
        Logarithms of the weights of negatives and positives.
    steps
        Number of steps; without any the knowledge answers as it is.
    """

    log_rates: Float[Array, " f"]
    log_bias_rate: Float[Array, ""]
    directions: Float[Array, "f r"]
    offset: Float[Array, ""]
    log_weights: Float[Array, " 2"]
    steps: int = eqx.field(static=True)

    @classmethod
    def start(
        cls,
        n_features: int,
        rank: int,
        *,
        key: Key[Array, ""],
        steps: int = 10,
        rate: float = 8.0,
    ) -> "KernelSteps":
        """Begin with equal rates; `rate` is the kernel of an image with itself by them."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        log_rate = np.float32(np.log(rate / n_features))
        directions = random.normal(0.0, 5.0 / np.sqrt(n_features), (n_features, rank))
        return cls(
            jax.device_put(np.full(n_features, log_rate)),
            jax.device_put(log_rate),
            jax.device_put(directions.astype(np.float32)),
            jax.device_put(np.float32(0.0)),
            jax.device_put(np.zeros(2, np.float32)),
            steps,
        )

    def __call__(
        self,
        experts: Knowledge,
        asked: Float[Array, "m q"],
        support: Float[Array, "s f"],
        labels: Int[Array, " s"],
        query: Float[Array, "q f"],
    ) -> Float[Array, "m q"]:
        """Return the log-odds of the queries after adaptation.

        Parameters
        ----------
        experts
            Experts side by side.
        asked
            Their log-odds of the queries by knowledge alone.
        support, labels, query
            Features and labels of the task.
        """
        if self.steps == 0:
            return asked
        n_support = len(support)
        kernel = self._kernels(experts, jnp.concatenate([support, query]), n_support)
        log_weights = self.log_weights + DEPARTURE * experts.log_weights
        weights = jnp.exp(log_weights)[:, labels] / n_support
        offset = (self.offset + DEPARTURE * experts.offset)[:, None]

        def step(c: Float[Array, "m s"], _: None) -> tuple[Float[Array, "m s"], None]:
            logits = offset + jnp.einsum("mxs,ms->mx", kernel[:, :n_support], c)
            return c + weights * (labels - jax.nn.sigmoid(logits)), None

        c, _ = jax.lax.scan(step, jnp.zeros_like(weights), None, length=self.steps)
        learned = offset + jnp.einsum("mxs,ms->mx", kernel[:, n_support:], c)
        return learned + experts.trust[:, None] * asked

    def _kernels(
        self, experts: Knowledge, features: Float[Array, "x f"], n_support: int
    ) -> Float[Array, "m x s"]:
        """Return the kernel of every expert between all samples and those of the support set."""
        shared = (features * jnp.exp(self.log_rates)) @ features[:n_support].T
        directions = FINE * (self.directions + DEPARTURE * experts.directions)
        along = jnp.einsum("xf,mfr->xmr", features, directions)
        own = jnp.einsum("xmr,smr->mxs", along, along[:n_support])
        return shared + own + jnp.exp(self.log_bias_rate)


class Answers(NamedTuple):
    """Log-odds of the queries by every expert, before and after adaptation."""

    before: Float[Array, "m q"]
    after: Float[Array, "m q"]


class SharedSpecialists(Hierarchy):
    """A hierarchy for two-class image tasks whose experts share features and adaptation.

    What is the same for all characters, the features of one convolutional block and how to adapt
    to them, is learned once, from all tasks. Experts depart from it by what their tasks teach.

    Attributes
    ----------
    trunk
        Maps images to features.
    adaptation
        Makes any expert's knowledge fit a support set.
    """

    trunk: OneBlock
    adaptation: KernelSteps

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Decision:
        """Return p(m|support) and p(y|x, m) of every query after adaptation."""
        answers = self.answers(x)
        return Decision((self.select(x),), two_classes(answers.after))

    def answers(self, x: Question) -> Answers:
        """Return what every expert answers.

        The knowledge of experts learns from answers before adaptation alone, features and
        adaptation from those after it alone: else either would be bent to the other's purpose.
        """
        n_support, experts = len(x.support.x), self.experts
        assert isinstance(experts, Knowledge)
        features = self.trunk(jnp.concatenate([x.support.x, x.query]))
        support, query = features[:n_support], features[n_support:]
        asked = experts.weight @ jax.lax.stop_gradient(query).T
        asked = FINE * asked + experts.bias[:, None]
        given = jax.lax.stop_gradient(asked)
        return Answers(asked, self.adaptation(experts, given, support, x.support.y, query))

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
