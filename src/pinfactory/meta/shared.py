"""Experts that share their features, and adapt a linear head by a learned rule.

For classes of images: one convolutional block serves all experts, and each has a head of its own,
to begin with and to adapt.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision, Expert, Hierarchy
from pinfactory.networks import numpy_generator, reserve
from pinfactory.vision import OneBlock

from .experts import TaskInput

# Weights of many features at once are stored larger than they act, by these factors: Adam moves
# all parameters by steps of about one size, which would be too far for these.
HEAD_SCALE, DIRECTION_SCALE = 0.05, 0.07
# How much of what an expert knows its adaptation begins at, before it has learned how much.
FIRST_TRUST = 0.3


class FeatureExpert(Expert):
    """The parameters that an expert does not share: an initial head, and how to adapt."""

    #: A linear map of the features to logits, before any sample of the task is seen.
    weight: Float[Array, "*m f c"]
    bias: Float[Array, "*m c"]
    #: V, along which the steps of the adaptation are longer. They begin at random, so that experts
    #: differ in what they take from a support set, and err in different tasks.
    directions: Float[Array, "*m f r"]
    #: What the first step adds to the bias, whatever the samples: without it a single sample of
    #: each class does not tell where to draw the line.
    offset: Float[Array, "*m c"]
    log_weights: Float[Array, "*m c"]  #: logarithms of the weights of samples of every class

    @classmethod
    def start(
        cls, n_experts: int, n_features: int, n_classes: int, rank: int, *, key: Key[Array, ""]
    ) -> "FeatureExpert":
        """Return experts side by side, all with nearly uniform answers."""
        reserve(n_experts, n_features, rank + n_classes)
        random = numpy_generator(key)

        def normal(scale: float, *shape: int) -> Array:
            numbers = random.normal(0.0, scale / np.sqrt(n_features), (n_experts, *shape))
            return jax.device_put(numbers.astype(np.float32))

        def zeros(*shape: int) -> Array:
            return jax.device_put(np.zeros((n_experts, *shape), np.float32))

        weight = normal(0.02 / HEAD_SCALE, n_features, n_classes)
        # Whatever their number, directions at first add 2 to the kernel of an image with itself.
        directions = normal(np.sqrt(2.0 / rank) / DIRECTION_SCALE, n_features, rank)
        return cls(weight, zeros(n_classes), directions, zeros(n_classes), zeros(n_classes))

    def __call__(
        self, x: Float[Array, "*n f"], *, key: Key[Array, ""] | None = None
    ) -> Categorical:
        """Return p(y|x, m) of features before any adaptation."""
        return Categorical.from_logits(self.logits(x))

    def logits(self, x: Float[Array, "*n f"]) -> Float[Array, "*n c"]:
        """Return what one expert knows of features before any adaptation."""
        return HEAD_SCALE * (x @ self.weight) + self.bias


class KernelSteps(eqx.Module):
    """Gradient steps on a linear head by a learned rule, from what the chosen expert knows.

    The steps begin at t · h(x) + o, where h are the logits of the chosen expert's initial head: the
    answers of that expert, less certain by a learned t, and a learned offset of the adapting
    expert. An expert who is as certain as its answers before any sample finds nothing to learn in
    samples of its own family.

    Every step goes up the log-likelihood of the support set, preconditioned by a learned matrix:
    A = diag(a) + V Vᵀ, with step sizes a that all experts share and directions V of the expert.
    What any number of steps adds to the head is A Σ φ(xₛ) cₛᵀ, so that only the coefficients c are
    computed, with the kernel k(x, x′) = φ(x)ᵀ A φ(x′).
    """

    log_rates: Float[Array, " f"]  #: log a, the step sizes of the features
    log_bias_rate: Float[Array, ""]  #: the same for the bias
    log_trust: Float[Array, ""]  #: log t
    steps: int = eqx.field(static=True)  #: number of steps; without any the initial head answers

    @classmethod
    def start(cls, n_features: int, *, steps: int = 10, rate: float = 4.0) -> "KernelSteps":
        """Begin with equal rates; `rate` is the kernel of an image with itself by them."""
        log_rate = np.float32(np.log(rate / n_features))
        rates = jax.device_put(np.full(n_features, log_rate))
        log_trust = jax.device_put(np.float32(np.log(FIRST_TRUST)))
        return cls(rates, jax.device_put(log_rate), log_trust, steps)

    def __call__(
        self,
        experts: FeatureExpert,
        support: Float[Array, "s f"],
        labels: Int[Array, " s"],
        query: Float[Array, "q f"],
        chosen: Int[Array, ""],
    ) -> Float[Array, "m q c"]:
        """Return the logits of the queries by experts side by side after adaptation."""
        n_support, features = len(support), jnp.concatenate([support, query])
        kernel = self._kernels(experts, features, n_support)
        weights = jnp.exp(experts.log_weights)[:, labels, None] / n_support
        # Initial heads learn from answers before adaptation alone.
        expert = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[chosen]), experts)
        start = jnp.exp(self.log_trust) * expert.logits(features) + experts.offset[:, None]
        target = jax.nn.one_hot(labels, start.shape[-1])

        def step(c: Float[Array, "m s c"], _: None) -> tuple[Float[Array, "m s c"], None]:
            now = start[:, :n_support] + kernel[:, :n_support] @ c
            return c + weights * (target - jax.nn.softmax(now)), None

        nothing = jnp.zeros((len(kernel), *target.shape))
        c, _ = jax.lax.scan(step, nothing, None, length=self.steps)
        return start[:, n_support:] + kernel[:, n_support:] @ c

    def _kernels(
        self, experts: FeatureExpert, features: Float[Array, "x f"], n_support: int
    ) -> Float[Array, "m x s"]:
        """Return the kernel of every expert between all samples and those of the support set."""
        shared = (features * jnp.exp(self.log_rates)) @ features[:n_support].T
        along = DIRECTION_SCALE * jnp.einsum("xf,mfr->xmr", features, experts.directions)
        own = jnp.einsum("xmr,smr->mxs", along, along[:n_support])
        return shared + own + jnp.exp(self.log_bias_rate)


class Answers(NamedTuple):
    """p(y|x, m) of the queries by every expert, before and after adaptation."""

    before: Categorical
    after: Categorical


class SharedHierarchy(Hierarchy):
    """A hierarchy for classification tasks whose experts share features."""

    trunk: OneBlock  #: maps images to features
    adaptation: KernelSteps  #: fits the experts' heads to a support set

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Decision:
        """Return p(m|support) and p(y|x, m) of every query after adaptation."""
        return Decision((self.select(x),), self.answers(x).after)

    def answers(self, x: TaskInput) -> Answers:
        """Return what every expert answers.

        Initial heads learn from answers before adaptation, features and adaptation from those
        after it: else either would be bent to the other's purpose.
        """
        n_support, experts = len(x.support.x), self.experts
        assert isinstance(experts, FeatureExpert)
        features = self.trunk(jnp.concatenate([x.support.x, x.query]))
        support, query = features[:n_support], features[n_support:]
        fixed = jax.lax.stop_gradient(query)
        before = jax.vmap(lambda expert: expert(fixed))(experts)
        if self.adaptation.steps == 0:
            return Answers(before, before)
        chosen = jnp.argmax(self.select(x).log_probs) if len(experts.bias) > 1 else jnp.asarray(0)
        logits = self.adaptation(experts, support, x.support.y, query, chosen)
        return Answers(before, Categorical.from_logits(logits))

    def expert(self, m: Int[Array, ""]) -> "Expert | Hierarchy":
        """Return expert m with the features and the adaptation that it shares."""
        one = jax.tree.map(lambda leaf: leaf[m][None], self.experts)
        alone = SharedHierarchy(self.selector, one, jnp.ones(1, bool), self.trunk, self.adaptation)
        return SingleExpert(alone)

    def with_steps(self, steps: int) -> "SharedHierarchy":
        """Return the same experts with another number of steps of adaptation."""
        adaptation = dataclasses.replace(self.adaptation, steps=steps)
        return dataclasses.replace(self, adaptation=adaptation)


class SingleExpert(Expert):
    """One expert of a hierarchy with shared features, on its own."""

    alone: SharedHierarchy

    def __call__(self, x: PyTree[Array], *, key: Key[Array, ""] | None = None) -> Categorical:
        return jax.tree.map(lambda leaf: leaf[0], self.alone.answers(x).after)
