"""One page that shows all experiments of a folder: figures, numbers and what was promised."""

from ._page import write_page

__all__ = ["write_page"]
