"""Networks that are good to start gradient steps from: MAML and ANIL."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Array, Float
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core import utilities
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.meta.adaptation import GradientSteps
from pinfactory.meta.experts import HeadedNetwork, MetaExpert, TaskInput
from pinfactory.meta.tasks import Samples
from pinfactory.persistence import register

from .few_shot import PARAMETERS, FewShotBaseline, FewShotModel


class GradientModel(FewShotModel):
    """One expert that adapts by gradient steps."""

    expert: MetaExpert

    def __call__(self, support: Samples, query: Float[Array, "q ..."]) -> Float[Array, "q ways"]:
        answers = self.expert(TaskInput(support, query))
        assert isinstance(answers, Categorical)
        return answers.log_probs

    def with_steps(self, steps: int) -> "GradientModel":
        """Return the model with another number of steps of its adaptation."""
        adaptation = self.expert.adaptation
        assert isinstance(adaptation, GradientSteps)
        return GradientModel(MetaExpert(self.expert.initial, adaptation.with_steps(steps)))


def gradient_model(
    network: HeadedNetwork,
    *,
    rate: float,
    steps: int,
    part: Literal["network", "head"],
    first_order: bool = False,
    zero_head: bool = True,
) -> GradientModel:
    """Return a network that adapts by plain gradient steps, from a head without preferences."""
    head = network.head
    if zero_head:
        head = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), head)
    initial = FamilyExpert(HeadedNetwork(network.features, head), Categorical.from_logits)
    adaptation = GradientSteps.start(
        initial,
        utilities.log_likelihood,
        rate=rate,
        steps=steps,
        part=part,
        first_order=first_order,
    )
    return GradientModel(MetaExpert(initial, adaptation))


@register("MAML")
@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class MAML(FewShotBaseline):
    """Model-agnostic meta-learning (Finn et al. 2017).

    Parameters
    ----------
    {parameters}
    inner_rate : float, default=0.01
        Step size of the adaptation.
    inner_steps : int, default=5
        Steps of the adaptation in training.
    test_steps : int, default=10
        Steps of the adaptation to a new task, at most 10,000.
    first_order : bool, default=False
        Whether second derivatives are left out.
    """

    inner_rate: float = 0.01
    inner_steps: int = 5
    test_steps: int = 10
    first_order: bool = False
    # What adapts to a task, and whether its head begins at zero.
    _part: ClassVar[Literal["network", "head"]] = "network"
    _zero_head: ClassVar[bool] = True

    @property
    def model_(self) -> FewShotModel:
        check_is_fitted(self)
        return self.state_.model.with_steps(
            check.integer("test_steps", self.test_steps, 0, check.MOST_STEPS)
        )

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        if self.blocks == 4 and not self.transductive:
            raise ValueError(
                "`transductive` must be True for four blocks that adapt, because statistics "
                "change with the weights, but got False."
            )
        return gradient_model(
            network,
            rate=check.number("inner_rate", self.inner_rate, 0.0, open_low=True),
            steps=check.integer("inner_steps", self.inner_steps, 1, check.MOST_STEPS),
            part=self._part,
            first_order=self.first_order,
            zero_head=self._zero_head,
        )


@register("ANIL")
@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class ANIL(MAML):
    """MAML that adapts the head only (Raghu et al. 2020).

    Parameters
    ----------
    {parameters}
    inner_rate, inner_steps, test_steps, first_order
        As in `MAML`.
    """

    _part: ClassVar[Literal["network", "head"]] = "head"
