"""The agent as users of Stable-Baselines3 know it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pinfactory import settings as check
from pinfactory.callbacks import Checkpoint, JsonLines, ProgressBar, TensorBoard
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Callback, NonFiniteError, Progress, Run
from pinfactory.persistence import load, register, save_model

from . import _actions
from ._build import build_improver, build_mind
from ._committee import Committee
from ._mind import Mind
from ._places import find_place
from ._play import Episodes
from ._watching import Function, History, InTimesteps, Keep


@register("SpecialistAgent")
class SpecialistAgent(Committee):
    """A committee of simple controllers: a selector p(m|x) and experts p(a|x,m).

    Both are trained by an actor–critic on the free energy (Section 3.3)

        r(x, a) − 1/β₁ log p(m|x)/p(m) − 1/β₂ log p(a|x,m)/p(a|m)

    with rewards in units of the deviation of discounted returns, and information charged at
    (1 − γ) of its price per step, so that a β means the same whatever the scale of the reward and
    the discount.

    Parameters
    ----------
    env
        An environment of `pinfactory.rl.envs` or its class; the id of a Gymnasium environment; a
        Gymnasium environment, its class or a function that makes one; or a vector environment.
        Environments written in JAX are compiled together with the update; the ids
        `Pendulum-v1`, `CartPole-v1` and `InvertedDoublePendulum-v5` are taken to mean ours, which
        are equal to them.
    n_experts
        Number of experts.
    expert
        `"linear"`, or `"mlp"` with the hidden layers `expert_hidden`.
    beta_selector, beta_expert
        β₁ and β₂: a number or a `pinfactory.core.resources.Scheduled`, whose steps are minibatches.
    selector_bits, expert_bits
        Budgets in bits, in place of β₁ and β₂.
    hold
        Steps for which a chosen expert acts before the selector chooses again.
    critic
        `"shared"` for one critic of the full free energy, `"paper"` for one critic of the
        selector and one for each expert.
    update
        `"clipped"` for generalised advantages and PPO's clipped ratios, `"plain"` for one-step
        advantages and the plain policy gradient, as in the paper.
    learning_rate
        Of Adam, at the start of `learn`; it falls linearly to a tenth.
    gamma, gae_lambda, clip
        Discount, trace of the advantages, and largest change of a probability ratio.
    n_envs, n_steps
        Environments side by side, and steps in each between two updates.
    max_episode_steps
        Steps after which an episode of training is truncated, the critic standing in for the rest;
        `None` for the environment's own limit. Lower ones keep beginnings among what is
        learned from when the agent has learned to live long. Evaluation plays whole episodes.
    n_epochs, batch_size
        How often an update goes through these steps, and how many it learns from at once.
    momentum
        λ of the running priors, per update.
    selector_hidden, expert_hidden, critic_hidden
        Widths of hidden layers, with tanh in between.
    params
        Parameters of the bodies, for environments written in JAX.
    capacity
        Room for experts in the arrays; agents of the same capacity share one compiled program.
    seed
        Of everything random.

    Attributes
    ----------
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

    def __init__(
        self,
        env: Any,
        n_experts: int = 5,
        expert: str = "linear",
        *,
        beta_selector: check.Beta = 25.0,
        beta_expert: check.Beta = 2.5,
        selector_bits: float | None = None,
        expert_bits: float | None = None,
        hold: int = 1,
        critic: str = "shared",
        update: str = "clipped",
        learning_rate: float = 2e-3,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        n_envs: int = 64,
        n_steps: int = 64,
        max_episode_steps: int | None = None,
        n_epochs: int = 8,
        batch_size: int = 512,
        momentum: float = 0.9,
        selector_hidden: tuple[int, ...] = (32, 32),
        expert_hidden: tuple[int, ...] = (64, 64),
        critic_hidden: tuple[int, ...] = (32, 32),
        params: Any = None,
        capacity: int | None = None,
        seed: int = 0,
    ) -> None:
        self._settings = {k: v for k, v in locals().items() if k not in ("self", "env", "params")}
        self.env, self.seed = env, check.integer("seed", seed, 0)
        self.n_experts = check.integer("n_experts", n_experts, 1)
        self.n_steps = check.integer("n_steps", n_steps, 1)
        self.hold = check.integer("hold", hold, 1)
        self.history_: list[Progress] = []
        self._run: Run | None = None
        self._mind: Mind | None = None
        self._random = np.random.default_rng([self.seed, 3])
        self._evaluations = 0
        if env is not None:
            self.set_env(env, params)

    def set_env(self, env: Any, params: Any = None) -> None:
        """Go on in another environment with observations and actions of the same kind."""
        longest = self._settings["max_episode_steps"]
        place = find_place(
            env,
            params,
            check.integer("n_envs", self._settings["n_envs"], 1),
            None if longest is None else check.integer("max_episode_steps", longest, 1),
        )
        old = getattr(self, "_kind", None)
        kind = (place.observation_shape, place.actions)
        if old is not None and old != kind:
            raise ValueError(
                f"`env` must have observations of shape {old[0]} and {old[1]}, but got {kind[0]} "
                f"and {kind[1]}."
            )
        known = None if self._mind is None else self.mind
        self.env, self._place, self._kind, self._run = env, place, kind, None
        self._improver = build_improver(self._settings, place.n_envs)
        if known is None:
            n_observation = math.prod(place.observation_shape)
            self._mind = build_mind(self._settings, n_observation, place.actions, place.n_envs)
        else:
            self._mind = known.moved(place.n_envs, self.n_steps)

    # -------------------------------------------------------------------------------- learning

    def learn(
        self,
        total_timesteps: int,
        callback: Callback | Callable[[Progress], Any] | Sequence[Any] | None = None,
        *,
        progress_bar: bool = False,
        log_dir: str | Path | None = None,
        checkpoint: str | Path | None = None,
        report_every: int = 20_000,
    ) -> "SpecialistAgent":
        """Act and learn for `total_timesteps` more steps, rounded up to whole updates.

        Parameters
        ----------
        total_timesteps
            Environment steps, counted over all environments.
        callback
            A `Callback`, a function of the progress that returns True to stop, or several of them.
        progress_bar
            Whether to show one.
        log_dir
            Directory for TensorBoard's event files and a `progress.jsonl`.
        checkpoint
            A file that keeps the state of training. If it exists, training goes on from there to
            the end it was meant for: exactly, as if it had not stopped, for environments
            written in JAX; with new episodes for others.
        report_every
            Environment steps between two reports, which is also where Ctrl-C takes effect.
        """
        if self.env is None:
            raise ValueError("An agent must have an environment to learn in: call set_env first.")
        per_iteration = self._place.n_envs * self.n_steps
        n_iterations = -(-check.integer("total_timesteps", total_timesteps, 1) // per_iteration)
        run = self._prepared(n_iterations)
        if checkpoint is not None and Path(checkpoint).exists():
            run = Checkpoint.resume(checkpoint, run)
        watching: list[Callback] = [History(self.history_)]
        if progress_bar:
            watching.append(ProgressBar(type(self).__name__, unit=" steps"))
        if log_dir is not None:
            watching += [TensorBoard(log_dir), JsonLines(Path(log_dir) / "progress.jsonl")]
        given = callback if isinstance(callback, Sequence) else [callback]
        watching += [
            each if isinstance(each, Callback) else Function(each)
            for each in given
            if each is not None
        ]
        callbacks: list[Callback] = [Keep(self), InTimesteps(watching, per_iteration)]
        if checkpoint is not None:
            callbacks.append(Checkpoint(checkpoint))
        self._run = run
        last = int(self._place.mind_of(run.state).hyper.last[0])
        try:
            self._run = self._place.train(
                run,
                self._improver,
                self.n_steps,
                seed=self.seed,
                steps=last,
                chunk=max(1, check.integer("report_every", report_every, 1) // per_iteration),
                callbacks=callbacks,
            )
        except NonFiniteError as error:
            self._run = error.run
            raise
        return self

    def _prepared(self, n_iterations: int) -> Run:
        """Return the run to go on with, with a learning rate that falls until its end."""
        run = self._run
        if run is None:
            begun = int(self.mind.iteration)
            state = self._place.start(self.seed, self.mind)
            run = Run.start(jnp.stack([jax.random.key(self.seed)]), stack([state]))
            run = eqx.tree_at(lambda r: r.step, run, jnp.asarray(begun))
        begun = int(run.step)

        def span(run: Run) -> Any:
            hyper = self._place.mind_of(run.state).hyper
            return hyper.first, hyper.last

        ends = (np.array([end], np.float32) for end in (begun, begun + n_iterations))
        return eqx.tree_at(span, run, tuple(map(jax.device_put, ends)))

    # ------------------------------------------------------------------------- what it can do

    @property
    def mind(self) -> Mind:
        """All that has been learned."""
        if self._run is not None:
            return self._place.mind_of(pick(self._run.state, 0))
        assert self._mind is not None
        return self._mind

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return int(self.mind.timesteps)

    def evaluate(
        self, n_episodes: int = 10, *, deterministic: bool = True, seed: int | None = None
    ) -> Episodes:
        """Return the returns and lengths of whole episodes, not scaled in any way."""
        if self.env is None:
            raise ValueError("An agent must have an environment to be evaluated: call set_env.")
        if seed is None:
            self._evaluations += 1
            seed = int(np.random.default_rng([self.seed, 4, self._evaluations]).integers(2**31))
        episodes = self._place.play(
            self.mind.policy, check.integer("n_episodes", n_episodes, 1), deterministic, seed
        )
        return Episodes(np.asarray(episodes.returns), np.asarray(episodes.lengths))

    # ---------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Write what was learned to one file; `load` reads it back."""
        save_model(self, path)

    @classmethod
    def load(cls, path: str | Path, env: Any = None) -> "SpecialistAgent":
        """Read an agent; one whose environment has no name needs `env` to go on learning."""
        agent = load(path)
        if not isinstance(agent, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}, but got {type(agent).__name__}.")
        if env is not None:
            agent.set_env(env)
        return agent

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        shape, actions = self._kind
        settings = dict(self._settings)
        for name in ("beta_selector", "beta_expert"):
            settings[name] = check.stored(settings[name])
        mind = self.mind
        meta = {
            "env": self.env if isinstance(self.env, str) else None,
            "settings": settings,
            "n_envs": len(mind.discounted),
            "observation_shape": shape,
            "actions": (type(actions).__name__, dict(vars(actions))),
        }
        return meta, mind

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "SpecialistAgent":
        settings = meta["settings"]
        for name in ("beta_selector", "beta_expert"):
            settings[name] = check.restored(settings[name])
        agent = cls(None, **settings)
        name, fields = meta["actions"]
        if name not in _actions.KINDS:
            raise ValueError(f"actions must be of a known kind, but got {name!r}.")
        agent._kind = (meta["observation_shape"], _actions.KINDS[name](**fields))
        n_observation = math.prod(meta["observation_shape"])
        agent._mind = load(
            build_mind(agent._settings, n_observation, agent._kind[1], meta["n_envs"])
        )
        if meta["env"] is not None:
            agent.set_env(meta["env"])
        return agent
