"""The first examples run as they stand and print what the documents say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/log.md", "docs/reads.md", "docs/tables.md", "docs/views.md"])
def test_the_first_example_prints_what_the_page_says(page):
    text = (ROOT / page).read_text()
    text = text[text.index("## A first example") :]
    code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    expected = re.findall(r"It prints:\n\n```\n(.*?)```", text, re.S)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_every_page_that_the_documents_link_to_exists():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
