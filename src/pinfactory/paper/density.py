"""Density estimation as in Sections 3.2 and 4.2: a selector network, experts by gradient."""

from dataclasses import dataclass, field
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.base import Learnable
from pinfactory.callbacks import fingerprint
from pinfactory.core.batches import Epochs
from pinfactory.core.compiling import compiled, with_library_settings
from pinfactory.core.constraints import Constraints, Prior, Priors
from pinfactory.core.families import LOG_2PI, Family, NormalWishart
from pinfactory.core.hierarchy import Decision, Expert, Hierarchy, assemble, pick, stack
from pinfactory.core.information import Information, measure
from pinfactory.core.learning import Info, Learner, State
from pinfactory.core.objective import Expectation, objective, sampled_objective
from pinfactory.core.training import Run
from pinfactory.persistence import register


class NormalWishartExpert(Expert):
    """p(μ, Λ | m), the same for every input: ω and W = LLᵀ are learned, ν and λ are fixed."""

    mean: Float[Array, "*m d"]
    log_diagonal: Float[Array, "*m d"]
    lower: Float[Array, "*m d d"]
    df: float = eqx.field(static=True)
    strength: float = eqx.field(static=True)

    @classmethod
    def start(
        cls, d: int, df: float, strength: float, *, key: Key[Array, ""]
    ) -> "NormalWishartExpert":
        """Begin with a random mean, and W for which (λE[Λ])⁻¹ is the unit matrix."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        mean = jnp.asarray(random.normal(size=d), float)
        log_diagonal = jnp.full(d, -0.5 * np.log(df * strength), float)
        return cls(mean, log_diagonal, jnp.zeros((d, d)), df, strength)

    def __call__(self, x: Any, *, key: Key[Array, ""] | None = None) -> NormalWishart:
        root = jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))
        df, strength = jnp.asarray(self.df, float), jnp.asarray(self.strength, float)
        return NormalWishart(self.mean, root, df, strength)


def expected_log_likelihood(answer: NormalWishart, x: Float[Array, " d"]) -> Float[Array, "*m"]:
    """Return E ℓ(x | μ, (λΛ)⁻¹) over the answer, in closed form.

    ½(D log λ + E[log|Λ|] − D log 2π − D − λν (x − ω)ᵀW(x − ω)), where the D is E of the quadratic
    form of μ − ω. −½ stands before all three terms of ℓ, not only before the first as printed.
    """
    shift = jnp.einsum("...ij,...i->...j", answer.scale_cholesky, x - answer.mean)
    spread = answer.strength * answer.df * jnp.sum(shift**2, axis=-1)
    constant = answer.dim * (jnp.log(answer.strength) - LOG_2PI - 1.0)
    return 0.5 * (constant + answer.mean_log_det() - spread)


def sampled_log_likelihood(
    key: Key[Array, ""], answer: NormalWishart, x: Float[Array, " d"]
) -> Float[Array, "*m"]:
    """Return ℓ(x | μ, (λΛ)⁻¹) of one sampled μ and Λ of every expert; differentiable in ω and W."""
    drawn = answer.sample(key)
    root = jnp.linalg.cholesky(drawn[..., 1:])
    shift = jnp.einsum("...ij,...i->...j", root, x - drawn[..., 0])
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)
    quadratic = answer.strength * jnp.sum(shift**2, axis=-1)
    return 0.5 * (answer.dim * (jnp.log(answer.strength) - LOG_2PI) + log_det - quadratic)


class MixtureLoss(eqx.Module):
    """−J of a selector network and Normal–Wishart experts (Section 3.2)."""

    #: Closed form in m, μ and Λ ("exact"), or one sampled expert for each input that has sampled
    #: one μ and Λ.
    expectation: Expectation = eqx.field(static=True, default="sampled")

    def __call__(
        self, model: Hierarchy, state: State, batch: Float[Array, "n d"], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Constraints, Info]]:
        known, weights = state.constraints, jnp.full(len(batch), 1.0 / len(batch))
        decision = jax.vmap(model)(batch)
        answers = cast(NormalWishart, decision.answers)
        choice_key, draw_key = jax.random.split(key)
        priors = _updated(known.priors, decision, weights)
        if self.expectation == "sampled":
            keys = jax.random.split(draw_key, len(batch))
            utility = jax.vmap(sampled_log_likelihood)(keys, answers, batch)
            parts = sampled_objective(choice_key, decision, priors, utility, known.betas)
        else:
            utility = jax.vmap(expected_log_likelihood)(answers, batch)
            parts = objective(decision, priors, utility, known.betas)
        info = Info.of(parts, weights, known)
        return -info.objective, (Constraints(priors, known.resources), info)


def _updated(priors: Priors, decision: Decision, weights: Float[Array, " n"]) -> Priors:
    """Take in the decisions; an expert's answer is the same for all inputs, and counts once."""
    selector, expert = priors.stages
    selection, answers = decision.stages
    once = jax.tree.map(lambda leaf: leaf[:1], answers)
    taken = jnp.sum(weights[:, None] * decision.responsibilities, axis=0, keepdims=True)
    return Priors((selector.update(selection, weights), expert.update(once, taken)))


@compiled
def _decide(model: Hierarchy, x: Float[Array, " d"]) -> Decision:
    return model(x)


@compiled
def _measure(model: Hierarchy, x: Float[Array, "n d"]) -> Information:
    return measure(jax.vmap(model)(x))


@register("paper.GradientMixture")
@dataclass(kw_only=True, eq=False, repr=False)
class GradientMixture(DensityMixin, Learnable):
    """Estimate a density as the paper does: a selector network, and experts by gradient.

    Parameters
    ----------
    n_experts : int, default=4
        How many experts there are.
    beta_selector, beta_expert : float or Scheduled, default=20, 1
        β₁ and β₂.
    selector_bits, expert_bits : float, optional
        A budget in bits instead of a β, met during training.
    df, strength : float, default=10, 1
        ν, above D − 1, and λ: fixed. The paper does not give them.
    prior : {"running", "fixed"}, default="running"
        Whether an expert's p₀(μ, Λ) is the running mean of its posteriors, as Section 3 has all
        priors, or N(0, I) in place of data, which the subscript of p₀(ω₀, Λ₀) may mean. Every
        sample pays KL/β₂, so that at β₂ = 1 a fixed prior draws every mean half way to zero.
    expectation : {"sampled", "exact"}, default="sampled"
        One sampled expert and one sampled (μ, Λ) for each input, or all in closed form.
    selector_hidden : tuple of int, default=(10, 10)
        Hidden layers of the selector, with tanh units.
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter, batch_size, learning_rate : default=10000, 32, 3e-4
        Steps of Adam.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness.

    Attributes
    ----------
    weights_, means_, covariances_ : ndarray
        p(m), ω and (λE[Λ])⁻¹ of every expert.
    information_ : Information
        Bits processed by the selector; an expert's answer does not depend on the input.
    effective_experts_ : float
        2^H(M).
    """

    n_experts: int = field(default=4, kw_only=False)
    beta_selector: Any = 20.0
    beta_expert: Any = 1.0
    selector_bits: float | None = None
    expert_bits: float | None = None
    df: float = 10.0
    strength: float = 1.0
    prior: str = "running"
    expectation: str = "sampled"
    selector_hidden: tuple[int, ...] = (10, 10)
    momentum_selector: float = 0.99
    momentum_expert: float = 0.99
    max_iter: int = 10_000
    batch_size: int = 32
    learning_rate: float = 3e-4
    verbose: bool = False
    random_state: Any = None

    _attributes = ("n_features_in_", "feature_names_in_", "n_iter_")

    def fit(self, X: Any, y: Any = None, *, callbacks: Any = None, checkpoint: Any = None) -> Any:
        """Learn from samples; arguments as in `SpecialistClassifier.fit`, `y` is ignored."""
        with self._learning():
            X = validate_data(self, X, dtype=np.float32, ensure_min_samples=2)
            seed = check.seed(self.random_state)
            expectation: Any = check.choice("expectation", self.expectation, ("sampled", "exact"))
            trained = self._train(
                Learner(MixtureLoss(expectation)),
                Run.start(jax.random.key(seed)[None], stack([self._start(seed)])),
                jnp.asarray(X),
                callbacks=callbacks,
                checkpoint=checkpoint,
                identity={"data": fingerprint(X)} if checkpoint else None,
                steps=check.integer("max_iter", self.max_iter, 1),
                batches=Epochs(len(X), check.integer("batch_size", self.batch_size, 1)),
            )
            self.state_, self.n_iter_ = pick(trained.run.state, 0), int(trained.run.step)
            self.information_ = _measure(self.state_.model, jnp.asarray(X)).on_host()
            self._warn_of_missed_budgets()
        return self

    def _start(self, seed: int) -> State:
        d, n_experts = self.n_features_in_, check.integer("n_experts", self.n_experts, 1)
        df = check.number("df", self.df, d - 1.0, open_low=True)
        strength = check.number("strength", self.strength, 0.0, open_low=True)
        hidden = check.sizes("selector_hidden", self.selector_hidden)
        networks.reserve(n_experts, d * d + d)
        model = assemble(
            jax.random.key(seed),
            lambda key: networks.mlp(d, n_experts, hidden, networks.tanh, key=key),
            lambda key: NormalWishartExpert.start(d, df, strength, key=key),
            n_experts,
        )
        priors = self._priors(_decide(model, jnp.zeros(d)))
        if check.choice("prior", self.prior, ("running", "fixed")) == "fixed":
            standard = eqx.tree_at(lambda e: e.mean, model.experts, jnp.zeros((n_experts, d)))
            answers: Family = jax.vmap(lambda expert: expert(None))(standard)
            priors = Priors((priors.stages[0], Prior.fixed(answers)))
        rate = check.number("learning_rate", self.learning_rate, 0.0, open_low=True)
        constraints = Constraints(priors, self._resources())
        return Learner(MixtureLoss()).init(model, constraints, learning_rate=rate)

    def _untrained(self) -> State:
        return self._start(0)

    def _check_state(self) -> None:
        if not hasattr(self, "information_"):  # which has the shares of the experts
            raise ValueError("the file of a mixture must hold its information")

    @property
    def weights_(self) -> Float[np.ndarray, " m"]:
        """p(m) of the training data."""
        check_is_fitted(self)
        return np.asarray(self.information_.responsibility)

    @property
    def means_(self) -> Float[np.ndarray, "m d"]:
        """ω of every expert."""
        check_is_fitted(self)
        return np.asarray(self.state_.model.experts.mean, float)

    @property
    @with_library_settings
    def covariances_(self) -> Float[np.ndarray, "m d d"]:
        """(λνW)⁻¹ of every expert."""
        check_is_fitted(self)
        answers = jax.vmap(lambda expert: expert(None))(self.state_.model.experts)
        root = np.asarray(answers.scale_cholesky, float)
        return np.linalg.inv(self.strength * self.df * root @ root.swapaxes(1, 2))

    @with_library_settings
    def responsibilities(self, X: Any) -> Float[np.ndarray, "n m"]:
        """Return p(m|x) of the selector."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return np.asarray(jax.vmap(self.state_.model.select)(jnp.asarray(X)).probs, float)

    def score_samples(self, X: Any) -> Float[np.ndarray, " n"]:
        """Return log Σ_m p(m) N(x | ω, (λE[Λ])⁻¹), the density at the expected parameters."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        parts = [
            multivariate_normal(mean, covariance).logpdf(X).reshape(len(X))
            for mean, covariance in zip(self.means_, self.covariances_, strict=True)
        ]
        return logsumexp(np.stack(parts, axis=1), axis=1, b=self.weights_)


def mixture(n_experts: int = 4, **changes: Any) -> GradientMixture:
    """Return the paper's density estimation: β₁ = 20, β₂ = 1, sampled, Adam 3e-4."""
    return GradientMixture(n_experts, **changes)
