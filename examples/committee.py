"""Train one to four linear experts, side by side, on two rings that no line tells apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
from sklearn.datasets import make_circles

from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Constraints, Fixed, Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, assemble, stack
from pinfactory.core.information import marginal, measure
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.training import Run, train
from pinfactory.core.utilities import log_likelihood

x, y = make_circles(1000, noise=0.05, factor=0.5, random_state=0)
data = Data(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(len(x)))
learner = Learner(CommitteeLoss(log_likelihood))


def start(key, n_available):
    """Build a linear selector over four linear experts, of which some are switched off."""
    hierarchy = assemble(
        key,
        selector=lambda key: eqx.nn.Linear(2, 4, key=key),
        expert=lambda key: FamilyExpert(eqx.nn.Linear(2, 2, key=key), Categorical.from_logits),
        n_experts=4,
    )
    hierarchy = eqx.tree_at(lambda h: h.available, hierarchy, jnp.arange(4) < n_available)
    priors = Priors.running(hierarchy(data.x[0]), momentum_selector=0.99, momentum_expert=0.99)
    constraints = Constraints(priors, (Fixed(25.0), Fixed(5.0)))
    return learner.init(hierarchy, constraints, learning_rate=3e-3)


keys = jax.random.split(jax.random.key(0), 4)
run = Run.start(keys, stack([start(key, n) for key, n in zip(keys, (1, 2, 3, 4), strict=True)]))
trained = train(learner, run, data, steps=4000, batches=Epochs(len(x), batch_size=32))


@eqx.filter_jit
@eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
def judge(hierarchy, data):
    """Return the accuracy of the whole committee and the bits it processes."""
    decision = jax.vmap(hierarchy)(data.x)
    correct = jnp.argmax(marginal(decision).log_probs, axis=-1) == data.y
    return jnp.mean(correct), measure(decision)


accuracy, information = judge(trained.run.state.model, data)
for n in range(4):
    print(
        f"{n + 1} linear experts: accuracy {accuracy[n]:.2f}, "
        f"selector {information.selectors[0][n]:.2f} bits, "
        f"an expert {information.experts[n]:.2f} bits"
    )
