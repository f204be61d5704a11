"""Print `package==lower bound` for every requirement in pyproject.toml (for `make test-lowest`)."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
requirements = [*project["dependencies"], *extras["rl"], *extras["report"], *extras["tensorboard"]]
for requirement in requirements:
    match = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", requirement)
    if match:
        print("==".join(match.groups()))
