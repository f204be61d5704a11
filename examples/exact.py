"""Solve a known table exactly: four specialists need fewer bits each than one who does it all."""

import numpy as np

from pinfactory.core.exact import solve

# Sixteen states in four groups. The exact answer is worth 1, another one of its group a half.
utility = 0.5 * np.kron(np.eye(4), np.ones((4, 4))) + 0.5 * np.eye(16)

for n_experts in (1, 4):
    solution = solve(utility, n_experts, beta_selector=100.0, beta_expert=4.0)
    print(
        f"{n_experts} experts: utility {solution.expected_utility:.2f}, "
        f"selector {solution.information_selector:.2f} bits, "
        f"an expert {solution.information_experts:.2f} bits"
    )
