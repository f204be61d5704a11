"""The agent as users of Stable-Baselines3 know it."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.callbacks import Callbacks, fingerprint
from pinfactory.core.compiling import with_library_settings
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.information import Information
from pinfactory.core.training import Run
from pinfactory.persistence import described, register, set_attributes

from .actions import BoxActions, stored_actions
from .backends import make_backend
from .base import CAPACITY_AND_LOGS, RESOURCES, TRAINING, HierarchicalAgent
from .build import build_ppo, build_state
from .evaluate import EpisodeResults, Evaluation
from .information import measure_information
from .predictor import Predictor

_GROWTH = ("n_initial_experts", "growth_fraction")


@register("SpecialistAgent")
@describe(resources=RESOURCES, capacity_and_logs=CAPACITY_AND_LOGS)
@dataclass(kw_only=True, eq=False, repr=False)
class SpecialistAgent(Predictor, HierarchicalAgent):
    """A committee of simple controllers: a selector p(m|x) and experts p(a|x,m).

    Both are trained by an actor–critic on the free energy (Section 3.3)

        r(x, a) − 1/β₁ log p(m|x)/p(m) − 1/β₂ log p(a|x,m)/p(a|m)

    with rewards in units of the standard deviation of discounted returns, and information charged
    at (1 − γ) of its price per step, so that a β means the same whatever the scale of the reward
    and the discount. That standard deviation is of the last hundred updates or so: once returns
    have settled, so has the price. With `units="reward"` rewards are what they are, and so is the
    price. `pinfactory.paper.agent` has the paper's own settings.

    Parameters
    ----------
    env
        An environment of `pinfactory.rl.envs` or its class; the id of a Gymnasium environment; a
        Gymnasium environment, its class or a function that makes one; or a vector environment.
        Environments written in JAX are compiled together with the update; the ids
        `Pendulum-v1`, `CartPole-v1` and `InvertedDoublePendulum-v5` are taken to mean ours, which
        are equal to them.
    n_experts
        Number of experts in the end.
    expert
        `"linear"`, `"mlp"` with the hidden layers `expert_hidden`, or `"constant"`: an action that
        does not depend on the state.
    expert_hidden, selector_hidden, critic_hidden
        Widths of hidden layers, with tanh in between; `()` for a linear map.
    n_initial_experts
        How many experts begin, by default all. Others are split off the experts that process most
        information, which doubles their number each time.
    growth_fraction
        The fraction of `learn` after which experts are split for the first time.
    {resources}
    learning_rate, final_learning_rate
        Of Adam, at the start and at the end of `learn`, linear in between; the latter is a tenth
        of the former if missing.
    max_grad_norm
        Gradients that are longer are shortened to this norm; `None` for no limit.
    batch_size, n_epochs
        How many steps an update learns from at once, and how often it goes through all of them.
    n_envs, n_steps
        Number of environments, and steps in each between two updates.
    gamma, gae_lambda, clip_range
        Discount, λ of the advantages, and largest change of a probability ratio.
    hold
        Steps for which a selected expert acts before the selector chooses again.
    critic
        `"shared"` for one critic of the full free energy, `"paper"` for one critic of the
        selector and one for each expert, `"printed"` for the same where the selector climbs the
        advantage of the expert who acted, as the paper prints it (it is zero on average once the
        expert's critic is right, so that it cannot rank experts).
    update
        `"clipped"` for generalised advantages and PPO's clipped ratios, `"plain"` for one-step
        advantages and the plain policy gradient, as in the paper.
    expectation
        `"exact"` to charge the KL divergences of both stages, `"sampled"` for the log-ratios of the
        sampled expert and action, as in the paper.
    units
        What a β is a price in: `"return"` (see above), or `"reward"`, as in the paper.
    normalise
        Whether observations and advantages are brought to mean 0 and deviation 1.
    squash
        Whether bounded actions are squashed by tanh; if not, they are clipped, as in the paper.
    max_episode_steps
        Steps after which an episode of training is truncated, with the critic's value for the
        rest; `None` for the environment's own limit. Lower ones keep starts among what is learned
        from once episodes have become long. Evaluation plays whole episodes.
    params
        Parameters of environments written in JAX.
    {capacity_and_logs}

    Attributes
    ----------
    state_ : AgentState
        All that has been learned.
    information_ : Information
        Bits of selector and experts on the states of the last update.
    effective_experts_ : float
        2^H(M).
    history_ : list of Progress
        What `learn` reported, in environment steps.
    num_timesteps : int
        Environment steps taken.

    Examples
    --------
    >>> from pinfactory.rl import SpecialistAgent
    >>> agent = SpecialistAgent("CartPole-v1", n_experts=2, n_envs=4, n_steps=16, batch_size=32)
    >>> agent = agent.learn(256)
    >>> action, _ = agent.predict([0.0, 0.0, 0.05, 0.0], deterministic=True)
    >>> agent.responsibilities([[0.0, 0.0, 0.05, 0.0]]).shape
    (1, 2)
    """

    env: Any = field(kw_only=False)
    n_experts: int = field(default=4, kw_only=False)
    expert: str = field(default="linear", kw_only=False)
    selector_hidden: tuple[int, ...] = (32, 32)
    n_initial_experts: int | None = None
    growth_fraction: float = 0.1
    final_learning_rate: float | None = None
    max_grad_norm: float | None = 1.0
    n_envs: int = 64
    hold: int = 1
    critic: str = "shared"
    expectation: str = "exact"
    units: str = "return"
    normalise: bool = True
    squash: bool = True
    max_episode_steps: int | None = None
    params: Any = None

    @with_library_settings
    def __post_init__(self) -> None:
        self._start()
        self.set_env(self.env, self.params)

    def _start(self) -> None:
        super()._start()
        self._backend: Any = None
        self._spaces: Any = None
        self._random = np.random.default_rng([self.seed, 3])

    @with_library_settings
    def set_env(self, env: Any, params: Any = None) -> None:
        """Continue in another environment with the same kind of observations and actions."""
        limit = self.max_episode_steps
        backend = make_backend(
            env,
            params,
            check.integer("n_envs", self.n_envs, 1),
            None if limit is None else check.integer("max_episode_steps", limit, 1),
        )
        actions = backend.actions
        if not self.squash and isinstance(actions, BoxActions):
            actions = dataclasses.replace(actions, squash=False)
        spaces = (backend.observation_shape, actions)
        if self._spaces is not None and self._spaces != spaces:
            (shape, known), (other_shape, other) = self._spaces, spaces
            raise ValueError(
                f"`env` must have observations of shape {shape} and {known}, but got {other_shape} "
                f"and {other}."
            )
        ppo = build_ppo(self, backend.n_envs)
        if self._initial is None:
            n_observation = math.prod(backend.observation_shape)
            state = build_state(self, n_observation, actions, backend.n_envs)
        else:
            state = self.state_.resized(backend.n_envs, self.n_steps)
        self.env, self.params, self._backend, self._spaces = env, params, backend, spaces
        self._ppo, self._initial, self._run = ppo, state, None

    # -------------------------------------------------------------------------------- learning

    @with_library_settings
    @describe(training=TRAINING)
    def learn(
        self,
        total_timesteps: int,
        callbacks: Callbacks = None,
        *,
        progress_bar: bool = False,
        checkpoint: str | Path | None = None,
        report_every: int = 20_000,
    ) -> "SpecialistAgent":
        """Train for `total_timesteps` more steps, rounded up to whole updates.

        Parameters
        ----------
        total_timesteps
            Environment steps, counted over all environments.
        {training}; Gymnasium's
            environments, which no file can hold, with new episodes.
        report_every
            Environment steps between two reports. Ctrl-C takes effect there, with Gymnasium
            environments at any time.
        """
        backend = self.backend
        unit = backend.n_envs * self.n_steps
        # Updates are counted in 32 bits, steps of the environments are not.
        most = check.MOST_COUNTED * unit
        n_iterations = -(-check.integer("total_timesteps", total_timesteps, 1, most) // unit)
        chunk = max(1, check.integer("report_every", report_every, 1, most) // unit)
        learner = backend.learner(self._ppo, self.n_steps)
        run = self.prepared_run(n_iterations)
        try:
            self._go_on(
                learner,
                run,
                backend.data(self.seed, self.n_steps),
                last=int(run.step) + n_iterations,
                chunk=1 if backend.on_host else chunk,
                every=chunk if backend.on_host else 1,
                unit=unit,
                callbacks=callbacks,
                progress_bar=progress_bar,
                checkpoint=checkpoint,
            )
        except NonFiniteError as error:
            backend.raise_if_at_fault(learner, error)
            raise
        self._warn_of_missed_budgets()
        return self

    def _first_run(self) -> Run:
        state = self.state_
        return self._start_run(self._backend.initial_state(self.seed, state), state.iteration)

    def _measured_information(self) -> Information:
        return measure_information(self.state_.policy, self.state_.visited, self.n_experts)

    # ------------------------------------------------------------------------- what it can do

    @property
    def backend(self) -> Any:
        """The environments; those that a file names are made when they are needed first."""
        if self._backend is None:
            if self.env is None:
                raise ValueError(
                    "An agent must have an environment to learn or be evaluated in: call set_env "
                    "first."
                )
            self.set_env(self.env, self.params)
        return self._backend

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return int(self.state_.timesteps)

    def evaluate(self, n_episodes: int = 10, *, seed: int | None = None) -> Evaluation:
        """Return the returns and lengths of whole episodes, deterministic and stochastic ones.

        Returns are not scaled in any way. Why the two may differ much, see `Evaluation`.

        Parameters
        ----------
        n_episodes
            How many of each.
        seed
            Of the episodes, whose starts are the same in both; new ones at every call if missing.
        """
        if seed is None:
            self._evaluations += 1
            seed = int(np.random.default_rng([self.seed, 4, self._evaluations]).integers(2**31))
        return Evaluation(
            self.play(n_episodes, deterministic=True, seed=seed),
            self.play(n_episodes, deterministic=False, seed=seed),
        )

    @with_library_settings
    def play(self, n_episodes: int, *, deterministic: bool, seed: int) -> EpisodeResults:
        """Return the returns and lengths of whole episodes of one kind; see `evaluate`."""
        n_episodes = check.integer("n_episodes", n_episodes, 1)
        seed = check.integer("seed", seed, 0, most=2**32 - 1)
        return self.backend.play(self.state_.policy, n_episodes, deterministic, seed)

    # ---------------------------------------------------------------------------------- files

    @classmethod
    def load(cls, path: str | Path, env: Any = None, **functions: Any) -> "SpecialistAgent":
        """Load an agent; pass `env` if its environment has no registered id."""
        agent: SpecialistAgent = super().load(path, **functions)
        if env is not None:
            agent.set_env(env)
        return agent

    def _subject(self) -> dict[str, Any]:
        leaves = jax.tree.leaves(self.params)
        params = fingerprint(*leaves) if leaves else "default"
        # Checkpoints from before experts could be split do not have these settings.
        unused = dict.fromkeys(_GROWTH) if self.n_initial_experts is None else {}
        return {
            "environment": described(getattr(self.env, "spec", None) or self.env),
            "params": params,
            **unused,
        }

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        shape, actions = self._spaces
        state = self.state_
        meta = {
            "env": self.env if isinstance(self.env, str) else None,
            "settings": self._stored_settings(),
            "n_envs": len(state.discounted),
            "observation_shape": shape,
            "actions": (type(actions).__name__, dict(vars(actions))),
        }
        return meta, state

    @classmethod
    @with_library_settings
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "SpecialistAgent":
        # Not by the constructor: the environment may be unknown here, and is not needed to act.
        agent = cls.__new__(cls)
        names = {each.name for each in dataclasses.fields(cls)} - set(cls._may_differ)
        settings = cls._restored_settings(meta["settings"])
        set_attributes(agent, settings, names, _GROWTH)
        agent.env = meta["env"]
        agent._start()
        agent._spaces = (meta["observation_shape"], stored_actions(*meta["actions"]))
        n_observation = math.prod(meta["observation_shape"])
        agent._initial = load(build_state(agent, n_observation, agent._spaces[1], meta["n_envs"]))
        return agent
