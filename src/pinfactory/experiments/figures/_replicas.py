"""Committees of linear experts for one task at many prices, all trained side by side."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory import networks
from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Constraints, Priors, Resource
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble, stack
from pinfactory.core.information import marginal, measure
from pinfactory.core.learning import CommitteeLoss, Data, Expectation, Learner, State
from pinfactory.core.training import Run, train
from pinfactory.core.utilities import log_likelihood
from pinfactory.experiments.synthetic_data import Split

# More replicas side by side spill the cache and take longer for each.
BLOCK = 16
_HIDDEN, _MOMENTUM, _BATCH = (10, 10), 0.99, 32


# How the paper trains: Appendix A.
LITERAL_TRAINING: Mapping[str, Any] = {
    "steps": 10_000,
    "learning_rate": 3e-4,
    "expectation": "sampled",
    "standardise": False,
}


class Plan(NamedTuple):
    """One training: its seed, its size and its prices."""

    seed: int
    n_experts: int
    selector: Resource
    expert: Resource


def train_committees(
    split: Split,
    plans: Sequence[Plan],
    *,
    steps: int,
    learning_rate: float,
    expectation: Expectation = "exact",
    uniform: bool = False,
    standardise: bool = True,
    points: Float[np.ndarray, "k 2"],
) -> list[dict[str, Any]]:
    """Train one committee for every plan and judge all of them on the held-out samples.

    Resources of one stage are of one kind in all plans, so that one program trains them.

    Parameters
    ----------
    split
        A task of two classes.
    plans
        The trainings.
    steps, learning_rate
        How they learn, by Adam in batches of 32.
    expectation
        Over all experts, or by one sampled expert for each input.
    uniform
        Whether priors are uniform (the confidence penalty) instead of running means.
    standardise
        Whether inputs are brought to zero mean and unit deviation here.
    points
        Inputs at which the committees are asked for a picture.

    Returns
    -------
    list of dict
        For every plan: accuracy, the probability of the right class under the committee's mixture
        (`sampled`, the accuracy of an answer that is drawn), bits of both stages and overall, p(m),
        β of both stages in the end, J in the last steps, and the picture: p(y=1|x) and p(m|x).
    """
    mean, scale = (split.X.mean(axis=0), split.X.std(axis=0)) if standardise else (0.0, 1.0)

    def data(X: np.ndarray, y: np.ndarray) -> Data:
        x = ((X - mean) / scale).astype(np.float32)
        columns = (x, y.astype(np.int32), np.ones(len(y), np.float32))
        return Data(*map(jax.device_put, columns))

    learner = Learner(CommitteeLoss(log_likelihood, expectation))
    most = max(plan.n_experts for plan in plans)
    fitted, test = data(split.X, split.y), data(split.X_test, split.y_test)
    asked = data(points, np.zeros(len(points))).x
    judged: list[dict[str, Any]] = []
    for start in range(0, len(plans), BLOCK):
        block = list(plans[start : start + BLOCK])
        # Filled up, so that all blocks are the same program.
        full = block + [block[-1]] * (min(BLOCK, len(plans)) - len(block))
        states = [_start(learner, plan, most, learning_rate, uniform, fitted.x[0]) for plan in full]
        keys = jnp.stack([jax.random.key(plan.seed) for plan in full])
        trained = train(
            learner,
            Run.start(keys, stack(states)),
            fitted,
            batches=Epochs(len(split.X), _BATCH),
            steps=steps,
            chunk=1000,
        )
        columns = jax.tree.map(np.asarray, _judge(trained.run.state, test, asked))
        columns["objective"] = trained.history[-1].info.objective
        for i, plan in enumerate(block):
            row = {name: column[i] for name, column in columns.items()}
            for name in ("share", "responsibilities"):
                row[name] = row[name][..., : plan.n_experts]
            judged.append({"seed": plan.seed, "n_experts": plan.n_experts, **row})
    return judged


def _start(
    learner: Learner,
    plan: Plan,
    most: int,
    learning_rate: float,
    uniform: bool,
    x: Float[Array, " d"],
) -> State:
    """Return an untrained committee of the shape of the largest."""
    hierarchy = assemble(
        jax.random.key(plan.seed),
        selector=lambda key: networks.mlp(len(x), most, _HIDDEN, networks.tanh, key=key),
        expert=lambda key: FamilyExpert(
            networks.linear(len(x), 2, key=key), Categorical.from_logits
        ),
        n_experts=most,
    )
    available = jax.device_put(np.arange(most) < plan.n_experts)
    hierarchy = eqx.tree_at(lambda h: h.available, hierarchy, available)
    like = hierarchy(x)
    priors = Priors.uniform(like) if uniform else Priors.running(like, _MOMENTUM, _MOMENTUM)
    constraints = Constraints(priors, (plan.selector, plan.expert))
    return learner.init(hierarchy, constraints, learning_rate=learning_rate)


@eqx.filter_jit
def _judge(states: State, test: Data, points: Float[Array, "k d"]) -> dict[str, Array]:
    """Judge all replicas at once."""

    def one(hierarchy: Hierarchy) -> dict[str, Array]:
        decision = jax.vmap(hierarchy)(test.x)
        answer, picture = marginal(decision), jax.vmap(hierarchy)(points)
        drawn = marginal(picture)
        assert answer is not None
        assert drawn is not None
        bits = measure(decision)
        return {
            "accuracy": jnp.mean(jnp.argmax(answer.log_probs, axis=-1) == test.y),
            "sampled": jnp.mean(jnp.exp(answer.log_prob(test.y))),
            "selector_bits": bits.selectors[0],
            "expert_bits": bits.experts,
            "overall_bits": bits.overall,
            "share": bits.responsibility,
            "proba": drawn.probs[:, 1],
            "responsibilities": picture.selections[0].probs,
        }

    columns = eqx.filter_vmap(one)(states.model)
    selector, expert = (
        jax.vmap(lambda r: r.beta)(resource) for resource in states.constraints.resources
    )
    return {**columns, "beta_selector": selector, "beta_expert": expert}
