"""The settings that classifier and regressor share, and what they stand for."""

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Key

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.base import Learnable, describe
from pinfactory.core.constraints import Budget, Fixed, Resource, Scheduled
from pinfactory.networks import Factory

# Utilities that are log-likelihoods.
LIKELIHOODS = ("likelihood", "student_t")

PARAMETERS = """n_experts : int or tuple of int, default=4
        Largest number of experts. How many are used is decided on held-out rows, down to one if
        one is enough (`start`). A tuple has one number for each level of selection:
        (4, 2) is a selector over four selectors over two experts each, and experts are numbered
        from 0 to 7.
    expert : {"linear", "mlp", "constant"} or callable, default="linear"
        Kind of expert: a linear map, the sum of a linear map and a multilayer perceptron, a
        constant, or a factory ``(inputs, outputs, *, key)`` of any Equinox module from
        a vector to a vector.
    expert_hidden : tuple of int, default=(64,)
        Hidden layers of an ``"mlp"`` expert, with ReLU units.
    selector : {"tree", "mlp", "linear"} or callable, default="tree"
        Kind of selector: a binary tree of linear gates, a multilayer perceptron, a linear map,
        or a factory as for `expert`.
    selector_hidden : tuple of int, default=(10, 10)
        Hidden layers of an ``"mlp"`` selector, with tanh units.
    start : {"auto", "tree", "random"}, default="auto"
        How training starts: from linear model trees of several sizes, including a single leaf, with
        oblique splits where these are better; from random parameters; or both. The best on held-out
        rows is kept.
    objective : {"auto", "likelihood", "free_energy"}, default="auto"
        What is maximised, both minus the price of information: the log-likelihood of the mixture,
        log Σ p(m|x) p(y|x,m), or the expected utility of an expert, which makes it J. "auto" is the
        likelihood wherever it is defined and prices stay fixed.
    beta_selector : float or Scheduled, default=25.0
        β₁, the selector's resource: large values allow sharp regions, small values make the
        experts share every sample. The same at every level of selection.
    beta_expert : float or Scheduled, default=20.0
        β₂, the experts' resource: small values keep their answers close to their prior p(y|m).
    selector_bits, expert_bits : float, optional
        A budget in bits; β is then adjusted, starting at the value above. It is met within 5 % on
        the training samples; if a stage cannot use so many bits, a warning says how many it
        uses. `partial_fit` approaches a budget batch by batch. For one level of selection.
    expectation : {"exact", "sampled"}, default="exact"
        Whether a step takes the exact expectation over experts, or samples one expert for each
        input, as the paper does.
    top_k : int, optional
        Use only the k most probable experts for each input, in training and prediction, with
        renormalised probabilities; all experts if not given. The cost of a step then hardly
        grows with the number of experts. Not for several levels, budgets or a sampled
        expectation.
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter : int, default=3000
        Largest number of gradient steps.
    batch_size : int or "auto", default="auto"
        Samples in a step; by default a sixty-fourth of all, between 32 and 1,024.
    learning_rate : float, default=0.006
        Step size of Adam.
    weight_decay : float, default=0.0
        Decay of all weights per unit of learning rate.
    early_stopping : bool, "folds" or "auto", default="auto"
        When to stop. True holds out a part of the samples, stops when the committee no longer
        improves on it, and keeps the best state. "folds" finds the number of
        steps by cross-validation and then trains that long on all samples. "auto" uses folds from
        10 samples on, a part of them from 10,000 samples on (or from 100 if a β follows a
        schedule).
    validation_fraction : float, default=0.15
        Share of the samples that is held out, at most 10,000 of them.
    n_iter_no_change : int, default=10
        Stop after this many checks without improvement; there is one every 100 steps.
    n_init : int, default=1
        Random starts, trained side by side with those from trees; the best is kept.
    standardise : bool, default=True
        Whether to standardise inputs and numerical targets and to leave out outliers; if not, data
        are used as they are. A column of two values is divided by half their distance.
    averaging : bool, default=True
        Whether to keep the running mean of the parameters instead of the last ones.
    warm_start : bool, default=False
        Whether `fit` continues from the last solution.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness: of random starts and networks. What begins as a tree whose experts
        are linear or constant is the same with every seed."""

ATTRIBUTES = """information_ : Information
        Bits processed by both stages (`selectors` has those of every level), overall and per
        expert; p(m); effective number of experts.
    effective_experts_ : float
        2^H(M), the effective number of experts in use.
    gain_ : tuple of two floats, or None
        Gain over one expert in held-out score, for each sample, and its standard error; None if
        no samples were held out.
    verdict_ : str
        A sentence that says whether one expert is enough, several share the work, or training
        collapsed.
    state_ : State
        The trained hierarchy, its priors and resources.
    n_iter_ : int
        Steps taken.
    n_features_in_, feature_names_in_
        As in scikit-learn."""


@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class CommitteeSettings(Learnable):
    """Settings of a selector and experts on the rows of a table.

    Parameters
    ----------
    {parameters}
    """

    n_experts: int | tuple[int, ...] = field(default=4, kw_only=False)
    expert: str | Factory = "linear"
    expert_hidden: tuple[int, ...] = (64,)
    selector: str | Factory = "tree"
    selector_hidden: tuple[int, ...] = (10, 10)
    start: str = "auto"
    objective: str = "auto"
    beta_selector: float | Scheduled = 25.0
    beta_expert: float | Scheduled = 20.0
    selector_bits: float | None = None
    expert_bits: float | None = None
    expectation: str = "exact"
    top_k: int | None = None
    momentum_selector: float = 0.99
    momentum_expert: float = 0.99
    max_iter: int = 3000
    batch_size: int | str = "auto"
    learning_rate: float = 6e-3
    weight_decay: float = 0.0
    early_stopping: bool | str = "auto"
    validation_fraction: float = 0.15
    n_iter_no_change: int = 10
    n_init: int = 1
    standardise: bool = True
    averaging: bool = True
    warm_start: bool = False
    verbose: bool = False
    random_state: Any = None

    def _network(self, inputs: int, outputs: int, key: Key[Array, ""]) -> networks.Network:
        """Build the network of an expert."""
        if callable(self.expert):
            return self.expert(inputs, outputs, key=key)
        kind = check.choice("expert", self.expert, ("constant", "linear", "mlp"))
        if kind == "mlp":
            hidden = check.sizes("expert_hidden", self.expert_hidden)
            return networks.residual_mlp(inputs, outputs, hidden, key=key)
        return getattr(networks, kind)(inputs, outputs, key=key)

    def _selector(self, inputs: int, outputs: int, key: Key[Array, ""]) -> networks.Network:
        """Build the selector."""
        if callable(self.selector):
            return self.selector(inputs, outputs, key=key)
        kind = check.choice("selector", self.selector, ("tree", "mlp", "linear"))
        if kind == "tree":
            return networks.SoftTree.random(inputs, outputs, key=key)
        if kind == "linear":
            network = networks.linear(inputs, outputs, key=key)
        else:
            hidden = check.sizes("selector_hidden", self.selector_hidden)
            network = networks.mlp(inputs, outputs, hidden, networks.tanh, key=key)
        return networks.limited(network) if self.standardise else network

    def _objective(self) -> str:
        """Return what is trained: the free energy J, or the likelihood of the mixture."""
        options = ("auto", "free_energy", "likelihood")
        asked = check.choice("objective", self.objective, options)
        if asked != "auto":
            return asked
        # A price that moves, or a budget, is one of J; so is a sampled expectation.
        moves = not all(isinstance(resource, Fixed) for resource in self._resources())
        if moves or not self._is_likely() or self.expectation == "sampled":
            return "free_energy"
        return "likelihood"

    def _is_likely(self) -> bool:
        """Return whether the utility is a log-likelihood."""
        return getattr(self, "utility", "likelihood") in LIKELIHOODS

    def _sizes(self) -> tuple[int, ...]:
        """Return the number of experts at every level of selection."""
        asked = self.n_experts
        levels = asked if isinstance(asked, tuple | list) and asked else (asked,)
        return tuple(check.integer("n_experts", number, 1) for number in levels)

    def _top_k(self) -> int | None:
        """Return how many experts are asked; None for all."""
        if self.top_k is None:
            return None
        asked = check.integer("top_k", self.top_k, 1)
        budgets = self.selector_bits is not None or self.expert_bits is not None
        if len(self._sizes()) > 1 or budgets or self.expectation == "sampled":
            raise ValueError(
                "`top_k` must be None with several levels of selection, budgets in bits, or a "
                f"sampled expectation, but got {self.top_k!r}."
            )
        return asked

    def _resources(self) -> tuple[Resource, Resource]:
        """Return where β₁ and β₂ come from; a budget's begins at what it would be without one."""
        sizes = self._sizes()

        def resource(name: str, most_bits: float) -> Resource:
            beta, bits = getattr(self, f"beta_{name}"), getattr(self, f"{name}_bits")
            if bits is not None and len(sizes) > 1:
                raise ValueError(
                    f"`{name}_bits` must be None for more than one level of selection, but got "
                    f"{bits!r} with n_experts={self.n_experts!r}."
                )
            found = check.resource(name, beta, bits, most_bits)
            if not isinstance(found, Budget) or isinstance(beta, Scheduled):
                return found
            beta = check.number(f"beta_{name}", beta, 0.0, open_low=True)
            return Budget(found.bits, jnp.asarray(math.log(beta)))

        return resource("selector", math.log2(math.prod(sizes))), resource("expert", math.inf)
