import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_examples_of_the_page_run(snippet):
    exec(snippet, {})
