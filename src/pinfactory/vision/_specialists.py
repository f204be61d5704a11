"""Experts for families of characters: shared eyes, shared way of adapting, own knowledge."""

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


class Knowledge(Expert):
    """What makes an expert: knowledge of a family of classes, and how to adapt within it.

    Attributes
    ----------
    weight, bias
        A linear map of the features to the log-odds that an image is of the family, before any
        sample of the task is seen.
    trust, offset
        What becomes of these log-odds when the expert adapts: they are multiplied, because they
        and the support set in part say the same, and moved, so that what is like no positive
        is a negative.
    log_weights
        Logarithms of the weights of negatives and positives.
    log_mix
        Logarithms of the shares of the shared metrics in the expert's own.
    """

    weight: Float[Array, "*m f"]
    bias: Float[Array, "*m"]
    trust: Float[Array, "*m"]
    offset: Float[Array, "*m"]
    log_weights: Float[Array, "*m 2"]
    log_mix: Float[Array, "*m r"]

    @classmethod
    def start(
        cls, n_experts: int, n_features: int, n_metrics: int, *, key: Key[Array, ""]
    ) -> "Knowledge":
        """Return experts side by side that know little, and differ a little."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))

        def near(mean: float, spread: float, *shape: int) -> Array:
            values = random.normal(mean, spread, (n_experts, *shape))
            return jax.device_put(values.astype(np.float32))

        return cls(
            near(0.0, 0.03 / np.sqrt(n_features), n_features),
            near(0.0, 0.0),
            near(1.0, 0.0),
            near(0.0, 0.0),
            near(0.0, 0.0, 2),
            near(-np.log(n_metrics), 0.1 if n_experts > 1 else 0.0, n_metrics),
        )

    def __call__(
        self, x: Float[Array, "*n f"], *, key: Key[Array, ""] | None = None
    ) -> Categorical:
        return two_classes(x @ self.weight + self.bias)


class KernelSteps(eqx.Module):
    """Gradient steps on an expert's linear head, from its knowledge, by a learned rule.

    Every step goes up the utility of the support set, with a step size aᵢ for each feature. So
    a head after any number of steps is w + a ∘ Σ cₛ φ(xₛ), and only the coefficients c need be
    followed, with the kernel k(x, x′) = Σ aᵢ φᵢ(x) φᵢ(x′). An expert's step sizes are a mixture
    of a few learned vectors that all experts share. Their kernels are computed once for a task,
    and ten steps of sixteen experts cost little more than those of one.

    Attributes
    ----------
    log_rates
        log a of the shared metrics.
    log_bias_rate
        The same for the bias.
    steps
        Number of steps; without any the knowledge answers as it is.
    """

    log_rates: Float[Array, "r f"]
    log_bias_rate: Float[Array, ""]
    steps: int = eqx.field(static=True)

    @classmethod
    def start(
        cls,
        n_features: int,
        n_metrics: int,
        *,
        key: Key[Array, ""],
        steps: int = 10,
        rate: float = 8.0,
    ) -> "KernelSteps":
        """Begin with about equal rates; `rate` is the kernel of an image with itself."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        log_rate = np.log(rate / n_features)
        rates = random.normal(log_rate, 0.1, (n_metrics, n_features)).astype(np.float32)
        return cls(jax.device_put(rates), jax.device_put(np.float32(log_rate)), steps)

    def __call__(
        self,
        experts: Knowledge,
        known: Float[Array, "m s"],
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
        known, asked
            Their log-odds by knowledge alone, for support and query.
        support, labels, query
            Features and labels of the task.
        """
        if self.steps == 0:
            return asked
        n_metrics, n_support = len(self.log_rates), len(support)
        rated = support * jnp.exp(self.log_rates)[:, None]
        # One product for all metrics: (s + q) × (r · s).
        shared = jnp.concatenate([support, query]) @ rated.reshape(n_metrics * n_support, -1).T
        shared = shared.reshape(-1, n_metrics, n_support)
        kernel = jnp.einsum("mr,xrs->mxs", jnp.exp(experts.log_mix), shared)
        kernel = kernel + jnp.exp(self.log_bias_rate)
        weights = jnp.exp(experts.log_weights)[:, labels] / n_support
        trust, offset = experts.trust[:, None], experts.offset[:, None]
        at_support = trust * known + offset

        def step(c: Float[Array, "m s"], _: None) -> tuple[Float[Array, "m s"], None]:
            logits = at_support + jnp.einsum("mxs,ms->mx", kernel[:, :n_support], c)
            return c + weights * (labels - jax.nn.sigmoid(logits)), None

        c, _ = jax.lax.scan(step, jnp.zeros_like(known), None, length=self.steps)
        return trust * asked + offset + jnp.einsum("mxs,ms->mx", kernel[:, n_support:], c)


class Answers(NamedTuple):
    """Log-odds of the queries by every expert, before and after adaptation."""

    before: Float[Array, "m q"]
    after: Float[Array, "m q"]


class SharedSpecialists(Hierarchy):
    """A hierarchy for two-class image tasks whose experts share features and adaptation.

    What is the same for all characters, the features of one convolutional block and metrics of
    them, is learned once, from all tasks.

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
        known = experts.weight @ jax.lax.stop_gradient(features).T + experts.bias[:, None]
        given = jax.lax.stop_gradient(known)
        after = self.adaptation(
            experts,
            given[:, :n_support],
            given[:, n_support:],
            features[:n_support],
            x.support.y,
            features[n_support:],
        )
        return Answers(known[:, n_support:], after)

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
