"""The agent that finds the right expert for a new task."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.callbacks import Callbacks
from pinfactory.core.compiling import with_library_settings
from pinfactory.core.information import Information
from pinfactory.core.training import Run
from pinfactory.persistence import register
from pinfactory.rl import envs
from pinfactory.rl.base import CAPACITY_AND_LOGS, RESOURCES, TRAINING, HierarchicalAgent

from .adapted import AdaptedAgent, finite_choice, probe_gymnasium
from .build import build_state, is_plain
from .evaluate import MetaEvaluation, draw_tasks, evaluation, measure_information
from .families import DrawnTasks, TaskFamily, TaskStream, checked_family, identify
from .files import restore_family, store_family
from .learner import FamilyLearner
from .policy import probe_and_select
from .state import TaskSlots

# Tasks on which `information_` is measured.
N_MEASURED = 512


@register("MetaSpecialistAgent")
@describe(resources=RESOURCES, capacity_and_logs=CAPACITY_AND_LOGS)
@dataclass(kw_only=True, eq=False, repr=False)
class MetaSpecialistAgent(HierarchicalAgent):
    """A recurrent selector that probes a new task, and experts for the tasks there are.

    The first `probe_steps` transitions (s, a, r, s′) of an episode go through a recurrent network
    that chooses an expert p(m|τ), which acts until the episode ends (Section 5.2). Experts learn by
    PPO on their free energy in tasks assigned to them, the selector from the experts' free energy
    in a second set of tasks drawn alike. Returns are measured in standard deviations of the
    discounted return, so that a β means the same whatever the reward's scale.

    Parameters
    ----------
    family
        The tasks to learn from.
    n_experts
        Number of experts in the end.
    expert
        `"mlp"` with the hidden layers `expert_hidden`, or `"linear"`.
    expert_hidden, critic_hidden
        Widths of hidden layers, with relu in between.
    selector_units, selector_cell
        Hidden units of the selector and of its critic, and their kind, `"indrnn"` or `"gru"`.
    {resources}
    learning_rate, critic_learning_rate, selector_learning_rate
        Of Adam, for the experts, all critics, and the selector; each falls to a fiftieth. The
        paper has 1e-4 for actors and 1e-3 for critics.
    batch_size, n_epochs
        How many steps experts learn from at once (`None` for eight of every task), and how often
        they learn from every step.
    n_tasks, n_steps
        Tasks in an iteration (as many again for the selector), and steps in each.
    gamma, gae_lambda, clip_range
        Discount, λ of the advantages, and PPO's range of probability ratios.
    balance_coef
        Bonus on H(M) in the beginning; it falls to zero until the end of `learn`.
    n_initial_experts
        How many experts begin. Later they are split, several times if need be. With as many as
        `n_experts` none is split.
    growth_fraction
        The fraction of `learn` after which experts are split and the selector stays as it is. Many
        experts that have much time profit from a small one: each learns from its share of the
        tasks.
    child_scale
        By what factor the answers of a new expert are larger than those of its parent. More than 1
        helps with tasks that need stronger actions than all that were learned from, and harms a
        little with others.
    update
        `"clipped"`, or `"plain"` for the learning rule of the paper's Algorithm 2 as it is printed:
        β₁ and β₂ are prices in units of the raw reward, information is charged as log-ratios of
        what was sampled, experts follow the policy gradient with one-step advantages and the
        selector that of the whole free energy less its critic's value, both from the tasks of an
        iteration alone; learning rates stay constant, nothing is normalised or clipped, and the
        first answers of experts are not made small.
        `pinfactory.paper.meta_agent` has the paper's other settings, too.
    squash
        Whether bounded actions are squashed by tanh; if not, they are clipped, as in the paper.
    probe
        How the first steps are spent: `"shake"` (small pushes in alternating directions), `"noise"`
        (small random actions), `"prior"` (a new expert drawn from p(m) at every step), or
        `"expert"` (one expert drawn from p(m), as in the paper).
    probe_steps, probe_size
        How many steps that takes, and the amplitude of a shake or of noise, as a fraction of the
        range of actions.
    {capacity_and_logs}

    Attributes
    ----------
    state_ : MetaAgentState
        All that has been learned.
    information_ : Information
        Bits of selector and experts on 512 tasks of the family.
    effective_experts_ : float
        2^H(M).
    history_ : list of Progress
        What `learn` reported.

    Examples
    --------
    >>> from pinfactory.rl.meta import MetaSpecialistAgent, pendulum_tasks
    >>> agent = MetaSpecialistAgent(pendulum_tasks(), 2, n_tasks=4, n_steps=16, selector_units=8)
    >>> agent = agent.learn(2)
    >>> adapted = agent.adapt(pendulum_tasks().env)
    >>> action, _ = adapted.predict([1.0, 0.0, 0.0], deterministic=True)
    >>> action.shape, adapted.responsibilities_.shape
    ((1,), (2,))
    """

    family: TaskFamily = field(kw_only=False)
    n_experts: int = field(default=4, kw_only=False)
    expert: str = field(default="mlp", kw_only=False)
    critic_hidden: tuple[int, ...] = (64, 64)
    selector_units: int = 200
    selector_cell: str = "indrnn"
    learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    selector_learning_rate: float = 1e-3
    batch_size: int | None = None
    n_epochs: int = 4
    n_tasks: int = 64
    n_steps: int = 128
    balance_coef: float = 0.3
    n_initial_experts: int = 2
    growth_fraction: float = 0.8
    child_scale: float = 1.0
    squash: bool = True
    probe: str = "shake"
    probe_steps: int = 2
    probe_size: float = 0.1

    @with_library_settings
    def __post_init__(self) -> None:
        self._start()
        check.integer("n_tasks", self.n_tasks, 1)
        self._information: Information | None = None
        self._report_every = 20
        checked_family("family", self.family)
        self._initial = build_state(self)
        self._learner = self._build_learner()

    @with_library_settings
    @describe(training=TRAINING)
    def learn(
        self,
        iterations: int,
        callbacks: Callbacks = None,
        *,
        progress_bar: bool = False,
        checkpoint: str | Path | None = None,
        report_every: int = 20,
    ) -> "MetaSpecialistAgent":
        """Meta-learn for so many more iterations.

        Parameters
        ----------
        iterations
            Each one draws `2 · n_tasks` new tasks and takes `n_steps` steps in every slot.
        {training}.
        report_every
            Iterations between two reports, which is also where Ctrl-C takes effect.
        """
        self._report_every = check.integer("report_every", report_every, 1)
        self._information = None
        run = self.prepared_run(check.integer("iterations", iterations, 1))
        self._go_on(
            self._learner,
            run,
            DrawnTasks(),
            last=int(run.step) + iterations,
            chunk=self._report_every,
            batches=TaskStream(self.family, 2 * self.n_tasks),
            callbacks=callbacks,
            progress_bar=progress_bar,
            checkpoint=checkpoint,
        )
        self._warn_of_missed_budgets()
        return self

    def _first_run(self) -> Run:
        key = jax.random.fold_in(jax.random.key(self.seed), 1)
        tasks = self.family.draw(np.random.default_rng([self.seed, 0]), self.n_tasks)
        slots = TaskSlots.start(self.family.env, self._initial.policy, key, tasks)
        return self._start_run((self._initial, slots), self._initial.iteration)

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken, those in the selector's tasks and in probes included."""
        state = self.state_
        steps = 2 * self.n_tasks * (self.n_steps + state.policy.probe.length)
        return int(state.iteration) * steps

    @with_library_settings
    def adapt(self, env: Any, params: Any = None, *, seed: int = 0) -> AdaptedAgent:
        """Probe an environment and return the expert chosen for it.

        Parameters
        ----------
        env
            An environment of `pinfactory.rl.envs`, or a Gymnasium environment with the same
            observations and actions. The latter is reset and left where the probe ends: going on
            from there is one episode, as in training; a reset starts another one.
        params
            Parameters of an environment written in JAX; the default ones if they are missing.
        seed
            Of the reset, and of what the expert samples.
        """
        policy = self.state_.policy
        if not (hasattr(env, "reset") and hasattr(env, "step")):
            raise ValueError(
                "`env` must be an environment of pinfactory.rl.envs or of Gymnasium, but got "
                f"{env!r}."
            )
        if isinstance(env, envs.Env):
            params = env.default_params() if params is None else params
            (responsibilities,) = self._probe(env, envs.replicate(params, 1), seed)
        else:
            responsibilities = probe_gymnasium(policy, env, seed)[: self.n_experts]
        return AdaptedAgent(policy, responsibilities, seed)

    @with_library_settings
    def evaluate(
        self,
        tasks: TaskFamily | None = None,
        *,
        n_tasks: int = 256,
        updates: int = 0,
        seed: int | None = None,
    ) -> MetaEvaluation:
        """Play a deterministic and a stochastic episode in each of `n_tasks` new tasks.

        Parameters
        ----------
        tasks
            Where they come from; the family that was learned from if it is missing.
        n_tasks
            How many.
        updates
            Iterations of learning on these tasks before they are played, as in the paper's 100
            on T′. A copy makes them; the agent itself stays as it is.
        seed
            Of the tasks; new ones at every call if it is missing.
        """
        family = self.family if tasks is None else checked_family("tasks", tasks)
        agent = self
        if updates:
            # Another length of chunks would be another program to compile.
            agent = self.copy(family).learn(updates, report_every=self._report_every)
        if seed is None:
            self._evaluations += 1
            seed = self._evaluations
        params = draw_tasks(family, n_tasks, self.seed, seed)
        return evaluation(agent.state_.policy, family, params, self.n_experts, seed)

    @with_library_settings
    def responsibilities(self, tasks: Any, *, seed: int = 0) -> Float[np.ndarray, "n m"]:
        """Probe tasks; return p(m|τ), a row for each task and a column for each expert.

        Parameters
        ----------
        tasks
            Parameters of the tasks, as the `draw` of a family returns them.
        seed
            Of the probe.
        """
        like, given = self.family.env.default_params(), jax.tree.leaves(tasks)
        structures = {jax.tree.structure(tasks), jax.tree.structure(like)}
        if len(structures) > 1 or {np.shape(leaf)[:1] for leaf in given} in ({()}, {(0,)}):
            raise ValueError(
                "`tasks` must be parameters with a leading axis of tasks, as `draw` of a family "
                f"returns them, but got {tasks!r}."
            )
        return finite_choice(self._probe(self.family.env, tasks, seed))

    def _probe(self, env: envs.Env, tasks: PyTree, seed: int) -> Float[np.ndarray, "n m"]:
        _, selection = probe_and_select(env, jax.random.key(seed), tasks, self.state_.policy)
        return np.asarray(selection.probs)[:, : self.n_experts]

    def _measured_information(self) -> Information:
        if self._information is None:
            params = draw_tasks(self.family, N_MEASURED, self.seed, 0)
            self._information = measure_information(
                self.state_.policy, self.family, params, self.n_experts, 0
            )
        return self._information

    @with_library_settings
    def copy(self, family: TaskFamily | None = None) -> "MetaSpecialistAgent":
        """Return an agent with the same settings and state, for this family or another."""
        changes: dict[str, Any] = {"tensorboard_log": None, "verbose": False}
        changes["family"] = self.family if family is None else family
        other = type(self)(**self.get_params(deep=False) | changes)
        other._initial = self.state_
        return other

    # --------------------------------------------------------------------------------- private

    def _subject(self) -> dict[str, str]:
        return identify(self.family)

    def _build_learner(self) -> FamilyLearner:
        size = self.batch_size
        n_rows = 8 if size is None else check.integer("batch_size", size, 1) // self.n_tasks
        plain = is_plain(self)
        return FamilyLearner(
            self.family.env,
            self.n_tasks,
            self.n_steps,
            1 if plain else check.integer("n_epochs", self.n_epochs, 1),
            min(max(1, n_rows), self.n_steps),
            plain,
        )

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        meta = {"settings": self._stored_settings(), "family": store_family(self.family)}
        return meta, self.state_

    @classmethod
    @with_library_settings
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "MetaSpecialistAgent":
        settings = cls._restored_settings(meta["settings"])
        agent = cls(restore_family(meta["family"]), **settings)
        agent._initial = load(agent._initial)
        return agent
