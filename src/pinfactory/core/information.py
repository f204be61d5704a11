"""How much information a hierarchy processes: computed in nats, reported in bits."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, Key

from .compiling import even_batch
from .constraints import Prior, member_sums
from .families import Categorical, Family
from .hierarchy import Decision

BITS_PER_NAT = 1.4426950408889634
# An expert with a smaller share of the inputs is idle: explanations leave it out.
IDLE = 0.001


class Information(eqx.Module):
    """Information that a hierarchy processes, in bits for each input.

    Attributes
    ----------
    selectors
        I(X;M) for every level of selection, given the choices above it: what a selector needs to
        know of an input to choose an expert.
    experts
        I(X;Y|M): what the chosen expert needs to know of it to answer. For answers that are not
        Categorical this is what they pay with a prior of their own family, an upper bound.
    overall
        I(X;Y): what the answer tells of the input; NaN where it is not known.
    per_expert
        I(X;Y|M=m), for each input that expert m handles.
    responsibility
        p(m): the share of the inputs that each expert handles.
    effective_experts
        2^H(M), the effective number of experts in use.
    about
        I(parameter; M) for named parameters of tasks, where they are known.
    """

    selectors: tuple[Any, ...]
    experts: Any
    overall: Any
    per_expert: Any
    responsibility: Any
    effective_experts: Any
    about: dict[str, float] = eqx.field(default_factory=dict)

    @property
    def selector(self) -> Any:
        """I(X;M) of all levels together."""
        return sum(self.selectors)

    def on_host(self) -> "Information":
        """Return the same as plain numbers and NumPy arrays."""
        return jax.tree.map(
            lambda leaf: np.asarray(leaf, float) if np.ndim(leaf) else float(leaf), self
        )

    @property
    def in_use(self) -> np.ndarray:
        """The numbers of the experts that are not idle."""
        share = np.ravel(self.responsibility)
        return np.flatnonzero(share >= min(IDLE, share.max()))

    def __repr__(self) -> str:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self)):
            return super().__repr__()
        told = self.on_host()
        share, bits = np.ravel(told.responsibility), np.ravel(told.per_expert)
        rows = [
            "Information in bits for each input",
            f"  selector  I(X;M)    {told.selector:8.3f}",
            *(
                f"    level {level}           {bits:8.3f}"
                for level, bits in enumerate(told.selectors, start=1)
                if len(told.selectors) > 1
            ),
            f"  experts   I(X;Y|M)  {told.experts:8.3f}",
            # Of densities it is not known.
            *([] if np.isnan(told.overall) else [f"  overall   I(X;Y)    {told.overall:8.3f}"]),
            f"  as many as {told.effective_experts:.2f} equally busy experts of {len(share)}",
            *(f"  I({name}; M) {value:.3f}" for name, value in told.about.items()),
            "  expert   share    bits",
            *(f"  {m:6d} {share[m]:7.3f} {bits[m]:7.3f}" for m in told.in_use),
        ]
        return "\n".join(rows)


class StageMeter(eqx.Module):
    """Running information of one stage: H(best common prior) − mean H(posterior).

    This equals the mean KL from the posteriors to the prior that is best for them, because that
    prior has their mean sufficient statistics. For a Categorical it is the mutual information;
    for other families it is what the stage pays for with a prior of its own family, an upper bound
    of the mutual information.
    """

    prior: Prior
    entropy: Float[Array, "..."]

    @classmethod
    def start(cls, like: Family) -> "StageMeter":
        """Start empty; `like` gives the shapes."""
        return cls(Prior.running(like, 1.0), jnp.zeros(like.batch_shape))

    def update(
        self,
        posteriors: Family,
        weights: Float[Array, "n ..."],
        chosen: Int[Array, "n k"] | None = None,
    ) -> "StageMeter":
        """Add n weighted posteriors; with `chosen`, those of the experts with these numbers."""
        prior = self.prior.update(posteriors, weights, chosen)
        seen = member_sums(weights * posteriors.entropy(), chosen, self.entropy)
        entropy = jnp.where(
            prior.mass > 0,
            (self.prior.mass * self.entropy + seen) / jnp.where(prior.mass > 0, prior.mass, 1.0),
            self.entropy,
        )
        return type(self)(prior, entropy)

    @property
    def share(self) -> Float[Array, "..."]:
        """How often the decision came to each member of the stage."""
        return self.prior.mass / jnp.sum(self.prior.mass)

    @property
    def bits(self) -> Float[Array, "..."]:
        """Information of each member of the stage in bits."""
        return jnp.maximum(self.prior.family.entropy() - self.entropy, 0.0) * BITS_PER_NAT


class Meter(eqx.Module):
    """Information of all stages over a stream of batches.

    ``Meter.start(decision).update(decision)`` measures one batch; further updates go on.
    """

    stages: tuple[StageMeter, ...]
    overall: StageMeter | None

    @classmethod
    def start(cls, like: Decision) -> "Meter":
        """Start empty; `like` is a decision for a batch and gives the shapes."""
        first = jax.tree.map(lambda leaf: leaf[0], like)
        overall = marginal(first)
        return cls(
            tuple(StageMeter.start(stage) for stage in first.outline),
            None if overall is None else StageMeter.start(overall),
        )

    def update(self, decision: Decision, weights: Float[Array, " n"] | None = None) -> "Meter":
        """Add the decisions for n inputs, weighted if `weights` are given."""
        if weights is None:
            weights = jnp.ones(decision.answers.batch_shape[0])
        each = zip(self.stages, decision.weighted_stages(weights), strict=True)
        stages = tuple(meter.update(*stage) for meter, stage in each)
        if self.overall is None:
            return type(self)(stages, None)
        answer = marginal(decision)
        assert answer is not None
        return type(self)(stages, self.overall.update(answer, weights))

    def report(self) -> Information:
        """Return what has been measured so far."""
        *selectors, experts = (jnp.sum(stage.share * stage.bits) for stage in self.stages)
        responsibility = self.stages[-1].share
        taken = Categorical.from_probs(responsibility.ravel())
        return Information(
            tuple(selectors),
            experts,
            math.nan if self.overall is None else self.overall.bits,
            self.stages[-1].bits,
            responsibility,
            jnp.exp(taken.entropy()),
        )


def measure(decision: Decision, weights: Float[Array, " n"] | None = None) -> Information:
    """Measure the information of one batch, with the batch's own marginals as priors."""
    return Meter.start(decision).update(decision, weights).report()


def marginal(decision: Decision) -> Categorical | None:
    """Return p(y|x) = Σ_m p(m|x) p(y|x,m), or None where it leaves the family."""
    if not isinstance(decision.answers, Categorical):
        return None
    responsibilities = decision.responsibilities[..., None]
    axes = tuple(range(-1 - len(decision.selections), -1))
    return Categorical.from_probs(jnp.sum(responsibilities * decision.answers.probs, axis=axes))


class Estimate(NamedTuple):
    """A Monte Carlo estimate in bits with its standard error."""

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def estimate_information(
    key: Key[Array, ""], decision: Decision, n_samples: int = 2000
) -> tuple[Estimate, Estimate]:
    """Estimate the true I(X;Y|M) and I(X;Y) of a batch for any family.

    Samples x, m ~ p(m|x) and y ~ p(y|x,m), and averages log p(y|x,m)/p(y|m) and log p(y|x)/p(y),
    with p(y|m) and p(y) the mixtures over the batch. Where only k experts were asked, m is one of
    these.

    Parameters
    ----------
    key
        Source of randomness.
    decision
        Decisions for n inputs with one level of selection.
    n_samples
        Number of samples; the standard error falls with its square root.
    """
    log_share, chosen = decision.log_responsibilities, decision.chosen
    n, n_asked = log_share.shape
    log_x_given_m = log_share - logsumexp(log_share, axis=0)

    def one(key: Key[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        x_key, m_key, y_key = jax.random.split(key, 3)
        x = jax.random.randint(x_key, (), 0, n)
        m = jax.random.categorical(m_key, log_share[x])
        answer: Family = jax.tree.map(lambda leaf: leaf[x, m], decision.answers)
        log_y = decision.answers.log_prob(answer.sample(y_key))
        if chosen is None:
            log_marginal = logsumexp(log_x_given_m[:, m] + log_y[:, m])
        else:
            same = jnp.where(chosen == chosen[x, m], log_share, -jnp.inf)
            log_marginal = logsumexp(same + log_y) - logsumexp(same)
        of_expert = log_y[x, m] - log_marginal
        log_mixture = logsumexp(log_share + log_y, axis=1)
        return of_expert, log_mixture[x] - logsumexp(log_mixture) + jnp.log(float(n))

    batch = even_batch(n_samples, 1_000_000 // (n * n_asked))
    ratios = jax.lax.map(one, jax.random.split(key, n_samples), batch_size=batch)
    experts, overall = (
        Estimate(
            jnp.mean(ratio) * BITS_PER_NAT,
            jnp.std(ratio, ddof=1) / jnp.sqrt(float(n_samples)) * BITS_PER_NAT,
        )
        for ratio in ratios
    )
    return experts, overall
