import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

project = "pinfactory"
author = "The pinfactory developers"
copyright = author
release = importlib.metadata.version(project)

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "results",
]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = project
pygments_dark_style = "github-dark"  # Furo's own underlines imported modules
html_static_path = ["_static"]
html_css_files = ["wide.css"]
myst_heading_anchors = 3

default_role = "literal"
# What scikit-learn adds to its estimators is described in its own documentation.
requests = ("fit", "partial_fit", "predict", "predict_proba", "score")
autodoc_default_options = {
    "members": True,
    "exclude-members": ", ".join(f"set_{method}_request" for method in requests),
}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Plain lists: fields would look for a target for every word of a type written in prose.
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_attr_annotations = False
napoleon_custom_sections = [("Attributes", "params_style")]


def escape_formulas(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list) -> None:
    """Keep |z| and a * b from being read as markup, outside of code."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`+[^`]+`+)", line)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", text) for text in parts[::2]]
            lines[i] = "".join(parts)


def keep_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list) -> None:
    """Keep napoleon from reading "a: b" in the first line of an attribute as a type and a text."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\ ")  # an escaped space, which prints nothing


def skip_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """Leave out the fields of named tuples, which Python describes by their numbers alone."""
    return skip or str(getattr(obj, "__doc__", "")).startswith("Alias for field number")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", escape_formulas, priority=400)
    app.connect("autodoc-process-docstring", keep_colons, priority=401)
