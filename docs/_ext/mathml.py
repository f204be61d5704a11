"""Formulas as MathML, which browsers set themselves: pages need no script and no network."""

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _mathml(formula: str, display: bool) -> str:
    return str(latex2mathml.tex2mathml(formula, as_block=display))


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(_mathml(node.astext(), display=False))
    raise nodes.SkipNode


def visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that stands alone; one that is too wide scrolls by itself."""
    self.body.append(f'<div class="math">{_mathml(node.astext(), display=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make it the way in which pages show formulas."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
