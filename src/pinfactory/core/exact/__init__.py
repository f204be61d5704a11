"""The coupled equations of a selector and its experts, solved where everything is known.

For a table U(x, y) the objective (2) of the paper (section 2.1),

    max  E[U] − 1/β₁ I(X;M) − 1/β₂ I(X;Y|M),

is maximised by alternating between the posteriors (3) and their marginals, the priors. With one
expert this is the algorithm of Blahut and Arimoto. `solve_process` does the same for a table of
rewards and transitions, a decision process in which the prices of later steps count as well. All
arithmetic is in float64.
"""

from ._ascent import Problem, State, leap, step
from ._process import ProcessSolution, solve_process
from ._solve import Solution, solve

__all__ = [
    "Problem",
    "ProcessSolution",
    "Solution",
    "State",
    "leap",
    "solve",
    "solve_process",
    "step",
]
