"""The agent that finds the right expert for a body it has never met."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from pinfactory import settings as check
from pinfactory.callbacks import Checkpoint, ProgressBar
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Callback, NonFiniteError, Progress, Run, train
from pinfactory.persistence import load, register, save_model
from pinfactory.rl import envs

from ._adapted import AdaptedAgent, adapt_gymnasium, adapt_native
from ._build import mind_for
from ._evaluation import MetaEvaluation, evaluation, information, meet
from ._families import TaskFamily
from ._information import MetaInformation
from ._learner import FamilyLearner
from ._mind import MetaMind
from ._play import Played, probe_and_select
from ._stored import restore_family, store_family
from ._stream import Bodies, TaskStream


@register("MetaSpecialistAgent")
class MetaSpecialistAgent:
    """A recurrent selector that probes a new body, and experts for the bodies there are.

    The first `probe_steps` transitions (s, a, r, s′) of an episode go through a recurrent network
    that chooses an expert p(m|τ), who acts until the episode ends (Section 5.2). Experts learn by
    PPO on their free energy in tasks assigned to them, the selector from the experts' free energy
    in a second set of tasks drawn alike. Returns are measured in deviations of the discounted
    return, so that a β means the same whatever the reward's scale.

    Parameters
    ----------
    family
        The tasks to learn from.
    n_experts
        Number of experts in the end.
    founders
        How many experts begin. After their childhood they divide, several times if need be. With
        as many founders as experts nobody divides.
    childhood
        The share of `learn` in which founders learn alone, and the selector with them; afterwards
        the selector stays as it is. Many experts that have much time profit from a short one:
        each learns from its share of the tasks.
    vigour
        By what factor the answers of a new expert are stronger than those of its parent. More than
        1 helps with bodies that are heavier than all that were learned from, and harms a little
        with others.
    probe
        How the first steps are spent: `"shake"` (small pushes to and fro), `"noise"` (small random
        actions), `"prior"` (a new expert drawn from p(m) at every step), or `"expert"` (one expert
        drawn from p(m), as in the paper).
    probe_steps, probe_size
        How many steps that takes, and the reach of a shake or of noise, as a share of the range
        of actions.
    cell, units
        `"indrnn"` or `"gru"`, and the hidden units of the selector and of its critic.
    hidden
        Hidden layers of experts and their critics.
    beta_selector, beta_expert
        β₁ and β₂.
    balance
        Bonus on H(M) in the beginning; it fades until the end of `learn`.
    learning_rate, critic_learning_rate, selector_learning_rate
        Of Adam, for the experts, all critics, and the selector; each falls to a fiftieth. The
        paper has 1e-4 for actors and 1e-3 for critics.
    gamma, gae_lambda, clip
        Discount, trace of the advantages, and PPO's range of probability ratios.
    n_tasks, n_steps
        Tasks side by side (as many again for the selector), and steps in each per iteration.
    n_epochs
        How often experts learn from every step.
    capacity
        Room for experts in the arrays; agents of the same capacity share one compiled program.
    seed
        Of everything random.

    Attributes
    ----------
    history_ : list of Progress
        What `learn` reported.

    Examples
    --------
    >>> from pinfactory.rl.meta import MetaSpecialistAgent, pendulum_tasks
    >>> agent = MetaSpecialistAgent(pendulum_tasks(), 2, n_tasks=4, n_steps=16, units=8)
    >>> agent = agent.learn(2)
    >>> adapted = agent.adapt(pendulum_tasks().env)
    >>> action, _ = adapted.predict([1.0, 0.0, 0.0], deterministic=True)
    >>> action.shape, adapted.responsibilities_.shape
    ((1,), (2,))
    """

    def __init__(
        self,
        family: TaskFamily,
        n_experts: int = 4,
        *,
        founders: int = 2,
        childhood: float = 0.8,
        vigour: float = 1.0,
        probe: str = "shake",
        probe_steps: int = 2,
        probe_size: float = 0.1,
        cell: str = "indrnn",
        units: int = 200,
        hidden: tuple[int, ...] = (64, 64),
        beta_selector: float = 25.0,
        beta_expert: float = 2.5,
        balance: float = 0.3,
        learning_rate: float = 1e-3,
        critic_learning_rate: float = 1e-3,
        selector_learning_rate: float = 1e-3,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        n_tasks: int = 64,
        n_steps: int = 128,
        n_epochs: int = 4,
        capacity: int | None = None,
        seed: int = 0,
    ) -> None:
        self._settings = {k: v for k, v in locals().items() if k not in ("self", "family")}
        self.n_experts = check.integer("n_experts", n_experts, 1)
        self.n_tasks = check.integer("n_tasks", n_tasks, 1)
        self.n_steps = check.integer("n_steps", n_steps, 1)
        self.seed = check.integer("seed", seed, 0)
        self.history_: list[Progress] = []
        self._run: Run | None = None
        self._evaluations, self._report_every = 0, 20
        self.family = family
        self._mind = mind_for(family.env, self._settings)

    def learn(
        self,
        iterations: int,
        callback: Callback | Sequence[Callback] = (),
        *,
        progress_bar: bool = False,
        checkpoint: str | Path | None = None,
        report_every: int = 20,
    ) -> "MetaSpecialistAgent":
        """Meta-learn for so many more iterations.

        Parameters
        ----------
        iterations
            Each one draws `2 · n_tasks` new tasks and plays `n_steps` steps in all places.
        callback
            One or several callbacks.
        progress_bar
            Whether to show one.
        checkpoint
            A file that keeps the state of training. If it exists, training goes on from there to
            the end it was meant for, exactly as if it had not stopped.
        report_every
            Iterations between two reports, which is also where Ctrl-C takes effect.
        """
        run = self._prepared(check.integer("iterations", iterations, 1))
        self._report_every = check.integer("report_every", report_every, 1)
        if checkpoint is not None and Path(checkpoint).exists():
            run = Checkpoint.resume(checkpoint, run)
        callbacks = [callback] if isinstance(callback, Callback) else list(callback)
        callbacks = [_Keep(self), *callbacks]
        if progress_bar:
            callbacks.append(ProgressBar(type(self).__name__, unit=" iterations"))
        if checkpoint is not None:
            callbacks.append(Checkpoint(checkpoint))
        try:
            trained = train(
                self._learner(self.family.env),
                run,
                Bodies(),
                steps=int(run.state[0].hyper.last[0]),
                batches=TaskStream(self.family, 2 * self.n_tasks),
                chunk=self._report_every,
                callbacks=callbacks,
            )
        except NonFiniteError as error:
            self._run = error.run
            raise
        self._run = trained.run
        return self

    @property
    def mind(self) -> MetaMind:
        """All that has been learned."""
        if self._run is not None:
            return pick(self._run.state, 0)[0]
        return self._mind

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken, those in the selector's tasks and in probes included."""
        steps = 2 * self.n_tasks * (self.n_steps + self.mind.policy.probe.length)
        return int(self.mind.iteration) * steps

    def adapt(self, env: Any, params: Any = None, *, seed: int = 0) -> AdaptedAgent:
        """Probe an environment and return the expert chosen for it.

        Parameters
        ----------
        env
            An environment of `pinfactory.rl.envs`, or a Gymnasium environment with the same
            observations and actions. The latter is reset and left where the probe ends: going on
            from there is one episode, as in training; a reset starts another one.
        params
            The body, for environments written in JAX; the default one if it is missing.
        seed
            Of the reset, and of what the expert samples.
        """
        policy = self.mind.policy
        if isinstance(env, envs.Env):
            params = env.default_params() if params is None else params
            responsibilities = adapt_native(policy, env, params, seed)
        else:
            responsibilities = adapt_gymnasium(policy, env, seed)
        return AdaptedAgent(policy, responsibilities[: self.n_experts], seed)

    def evaluate(
        self,
        tasks: TaskFamily | None = None,
        *,
        n_tasks: int = 256,
        updates: int = 0,
        deterministic: bool = True,
        seed: int | None = None,
    ) -> MetaEvaluation:
        """Play one episode in each of `n_tasks` new tasks.

        Parameters
        ----------
        tasks
            Where they come from; the family that was learned from if it is missing.
        n_tasks
            How many.
        updates
            Iterations of learning on these tasks before they are judged, as in the paper's 100
            on T′. They are made by a copy; the agent itself stays as it is.
        deterministic
            Whether to take the most probable expert and the action it favours.
        seed
            Of the tasks; new ones at every call if it is missing.
        """
        family = self.family if tasks is None else tasks
        agent = self
        if updates:
            # Another length of chunks would be another program to compile.
            agent = self._copy(family).learn(updates, report_every=self._report_every)
        met = agent._meet(family, n_tasks, deterministic, seed)
        return evaluation(family, *met, self.n_experts)

    def responsibilities(
        self, tasks: TaskFamily | None = None, *, n_tasks: int = 256, seed: int = 0
    ) -> tuple[Float[np.ndarray, "n m"], dict[str, np.ndarray]]:
        """Probe new tasks; return p(m|τ), and what tells the tasks apart."""
        family = self.family if tasks is None else tasks
        params = family.draw(np.random.default_rng([self.seed, seed]), n_tasks)
        _, selection = probe_and_select(family.env, jax.random.key(seed), params, self.mind.policy)
        return np.asarray(selection.probs)[:, : self.n_experts], family.describe(params)

    @property
    def information_(self) -> MetaInformation:
        """Information that selector and experts process, on 512 tasks of the family."""
        met = self._meet(self.family, 512, False, 0)
        return information(self.family, *met, self.n_experts)

    def save(self, path: str | Path) -> None:
        """Save the agent with its family, a `ParameterFamily` of an environment of this library."""
        save_model(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "MetaSpecialistAgent":
        """Load an agent, ready to go on learning."""
        agent = load(path)
        if not isinstance(agent, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}, but got {type(agent).__name__}.")
        return agent

    # ---------------------------------------------------------------------------------- within

    def _meet(
        self, family: TaskFamily, n_tasks: int, deterministic: bool, seed: int | None
    ) -> tuple[Any, Played]:
        if seed is None:
            self._evaluations += 1
            seed = self._evaluations
        return meet(self.mind.policy, family, n_tasks, deterministic, (self.seed, seed))

    def _copy(self, family: TaskFamily) -> "MetaSpecialistAgent":
        """Return an agent that knows as much, in another family of tasks."""
        other = type(self)(family, **self._settings)
        other._mind = self.mind
        return other

    def _learner(self, env: envs.Env) -> FamilyLearner:
        rows = min(8, self.n_steps)
        epochs = check.integer("n_epochs", self._settings["n_epochs"], 1)
        return FamilyLearner(env, self.n_tasks, self.n_steps, epochs, rows, 16, 2 * self.n_tasks)

    def _prepared(self, iterations: int) -> Run:
        """Return the run to go on with, with learning rates that fall until its end."""
        family, run = self.family, self._run
        if run is None:
            mind = self._mind
            key = jax.random.fold_in(jax.random.key(self.seed), 1)
            tasks = family.draw(np.random.default_rng([self.seed, 0]), self.n_tasks)
            places = self._learner(family.env).first_tasks(mind, key, tasks)
            run = Run.start(jnp.stack([jax.random.key(self.seed)]), stack([(mind, places)]))
            run = eqx.tree_at(lambda r: r.step, run, mind.iteration.astype(run.step.dtype))
        begun = int(run.step)
        ends = (np.array([end], np.float32) for end in (begun, begun + iterations))
        return eqx.tree_at(
            lambda r: (r.state[0].hyper.first, r.state[0].hyper.last),
            run,
            tuple(map(jax.device_put, ends)),
        )

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        family = store_family(self.family)
        return {"settings": self._settings, "family": family}, self.mind

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], loading: Callable[[PyTree], PyTree]
    ) -> "MetaSpecialistAgent":
        agent = cls(restore_family(meta["family"]), **meta["settings"])
        agent._mind = loading(agent.mind)
        return agent


class _Keep(Callback):
    """Gives the agent whatever has been learned, so that no error takes it away."""

    def __init__(self, agent: MetaSpecialistAgent) -> None:
        self.agent = agent

    def chunk(self, progress: Progress, run: Run) -> None:
        self.agent._run = run
        self.agent.history_.append(progress)
