"""Learners that are good to start gradient steps from: MAML and ANIL."""

from typing import Literal

import jax
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core import utilities
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.meta.adaptation import GradientSteps
from pinfactory.meta.experts import HeadedNetwork, MetaExpert, Question
from pinfactory.meta.tasks import Samples
from pinfactory.persistence import register

from ._few_shot import FewShotBaseline, FewShotModel


class GradientModel(FewShotModel):
    """One expert that adapts by gradient steps."""

    expert: MetaExpert

    @property
    def network(self) -> HeadedNetwork:
        return self.expert.knowledge.network  # type: ignore[attr-defined]

    def __call__(self, support: Samples, query: Float[Array, "q h w"]) -> Float[Array, "q ways"]:
        answers = self.expert(Question(support, query))
        assert isinstance(answers, Categorical)
        return answers.log_probs


def gradient_model(
    network: HeadedNetwork,
    *,
    rate: float,
    steps: int,
    part: Literal["network", "head"],
    first_order: bool = False,
) -> GradientModel:
    """Return a network that adapts by plain gradient steps, from a head without preferences."""
    head = jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)), network.head)
    knowledge = FamilyExpert(HeadedNetwork(network.features, head), Categorical.from_logits)
    adaptation = GradientSteps.start(
        knowledge,
        utilities.log_likelihood,
        rate=rate,
        steps=steps,
        part=part,
        first_order=first_order,
    )
    return GradientModel(MetaExpert(knowledge, adaptation))


@register("MAML")
class MAML(FewShotBaseline):
    """Model-agnostic meta-learning (Finn et al. 2017).

    Parameters
    ----------
    inner_rate : float, default=0.01
        Step size of the adaptation.
    inner_steps : int, default=5
        Steps of the adaptation in training.
    test_steps : int, default=10
        Steps of the adaptation to a new task.
    first_order : bool, default=False
        Whether second derivatives are left out.
    **others
        See `FewShotBaseline`.
    """

    _part: Literal["network", "head"] = "network"

    def __init__(
        self,
        blocks: int = 1,
        *,
        inner_rate: float = 0.01,
        inner_steps: int = 5,
        test_steps: int = 10,
        first_order: bool = False,
        max_iter: int = 4000,
        batch_size: int = 16,
        learning_rate: float = 1e-3,
        transductive: bool = False,
        strided: bool = False,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            blocks,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            transductive=transductive,
            strided=strided,
            warm_start=warm_start,
            verbose=verbose,
            random_state=random_state,
        )
        self.inner_rate = inner_rate
        self.inner_steps = inner_steps
        self.test_steps = test_steps
        self.first_order = first_order

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        if self.blocks == 4 and not self.transductive:
            raise ValueError(
                "`transductive` must be True for four blocks that adapt, because statistics "
                "change with the weights, but got False."
            )
        return gradient_model(
            network,
            rate=self.inner_rate,
            steps=self.inner_steps,
            part=self._part,
            first_order=self.first_order,
        )

    def _settle(self, images: np.ndarray) -> None:
        super()._settle(images)
        self.model_ = with_steps(self.model_, self.test_steps)


@register("ANIL")
class ANIL(MAML):
    """MAML that adapts the head only (Raghu et al. 2020); parameters as there."""

    _part = "head"


def with_steps(model: FewShotModel, steps: int) -> FewShotModel:
    """Return the model with another number of steps of its adaptation."""
    assert isinstance(model, GradientModel)
    adaptation = model.expert.adaptation
    assert isinstance(adaptation, GradientSteps)
    return GradientModel(MetaExpert(model.expert.knowledge, adaptation.with_steps(steps)))
