"""Which expert takes which tasks: `TaskPartitionDisplay`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pinfactory.plotting.style import GREY, expert_colours, tidy

from .evaluate import group_values, information_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .agent import MetaSpecialistAgent
    from .families import TaskFamily


class TaskPartitionDisplay:
    """The experts' shares of the tasks, for each parameter that tells tasks apart.

    Make it with `from_agent`. A panel shows p(m | parameter) for the parameter's values, or for
    eight groups of equal size, and says how many bits the choice of an expert tells about it.

    Parameters
    ----------
    responsibilities : ndarray of shape (n_tasks, n_experts)
        p(m|τ).
    tasks : dict of ndarray
        Parameters of the tasks, by name.

    Attributes
    ----------
    figure_ : matplotlib Figure
    axes_ : list of matplotlib Axes
    """

    figure_: "Figure"
    axes_: "list[Axes]"

    def __init__(
        self, *, responsibilities: Float[np.ndarray, "n m"], tasks: dict[str, np.ndarray]
    ) -> None:
        self.responsibilities, self.tasks = responsibilities, tasks

    @classmethod
    def from_agent(
        cls,
        agent: "MetaSpecialistAgent",
        tasks: "TaskFamily | None" = None,
        *,
        parameters: Sequence[str] | None = None,
        n_tasks: int = 2048,
        seed: int = 0,
    ) -> "TaskPartitionDisplay":
        """Probe new tasks and draw which expert would be chosen for them.

        Parameters
        ----------
        agent
            The agent whose selector chooses.
        tasks
            Where the tasks come from; the agent's own family if it is missing.
        parameters
            Which to show; all of them if they are missing.
        n_tasks, seed
            How many tasks are probed, and the seed of their draw.
        """
        family = agent.family if tasks is None else tasks
        params = family.draw(np.random.default_rng([agent.seed, seed]), n_tasks)
        described = family.describe(params)
        names = list(described) if parameters is None else list(parameters)
        for name in names:
            if name not in described:
                raise ValueError(
                    f"A parameter must be one of {sorted(described)}, but got {name!r}."
                )
        display = cls(
            responsibilities=agent.responsibilities(params, seed=seed),
            tasks={name: described[name] for name in names},
        )
        return display.plot()

    def plot(self) -> "TaskPartitionDisplay":
        """Draw one panel for each parameter."""
        from matplotlib.figure import Figure

        n = len(self.tasks)
        columns = min(n, 4)
        rows = -(-n // columns)
        self.figure_ = Figure(figsize=(3.1 * columns, 2.7 * rows), layout="constrained")
        axes = self.figure_.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for ax in axes[n:]:
            ax.set_visible(False)
        self.axes_ = list(axes[:n])
        for ax, (name, values) in zip(self.axes_, self.tasks.items(), strict=True):
            self._panel(ax, name, values)
        for ax in self.axes_[::columns]:
            ax.set_ylabel("p(expert | parameter)")
        handles, labels = self.axes_[0].get_legend_handles_labels()
        self.figure_.legend(
            handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False
        )
        return self

    def _panel(self, ax: "Axes", name: str, values: np.ndarray) -> None:
        draw_shares(ax, name, *task_shares(values, self.responsibilities))
        bits = information_about(group_values(values), self.responsibilities)
        ax.set_title(f"{bits:.2f} bit", loc="left", fontsize=10, color=GREY)


def task_shares(
    values: Float[np.ndarray, " n"], responsibilities: Float[np.ndarray, "n m"]
) -> tuple[list[float], Float[np.ndarray, "g m"]]:
    """Return medians and p(m | group) of at most eight groups of tasks by a parameter's values."""
    group = group_values(values, 8)
    members = [group == g for g in range(group.max() + 1)]
    middles = [float(np.median(values[mine])) for mine in members]
    return middles, np.stack([responsibilities[mine].mean(axis=0) for mine in members])


def draw_shares(
    ax: "Axes", name: str, middles: Sequence[float], shares: Float[np.ndarray, "g m"]
) -> None:
    """Draw p(m | parameter) as stacked bars, one for each group of tasks."""
    bottom = np.zeros(len(shares))
    for expert, colour in enumerate(expert_colours(shares.shape[1])):
        ax.bar(
            range(len(shares)), shares[:, expert], 0.96, bottom=bottom, color=colour,
            label=f"expert {expert}",
        )  # fmt: skip
        bottom = bottom + shares[:, expert]
    # Few labels of many, so that none touches the next.
    shown = range(len(shares)) if len(shares) <= 4 else (0, len(shares) // 2, len(shares) - 1)
    ax.set_xticks(list(shown), [f"{middles[g]:.3g}" for g in shown])
    ax.set(ylim=(0.0, 1.0), xlabel=name.replace("_", " "))
    tidy(ax)
