"""What the tests of the linter share.

Inline expectations of the fixtures: `# KL006` on a line, or `# KL006: 12` with the column, several apart by blanks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import kullback

FIXTURES = Path(__file__).parent / "fixtures"
SRC = str(Path(kullback.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SRC, "PYTHONIOENCODING": "utf-8"}
BAD = "import torch.nn.functional as F\n\nloss = F.kl_div(x, y)\n"
_EXPECTED = re.compile(r"(KL\d{3})(?::\s*(\d+))?")
_COMMENT = re.compile(r"#\s*((?:KL\d{3}(?::\s*\d+)?\s*)+)$")


def expected(text: str) -> list[tuple[int, int, str]]:
    """(line, column, rule) of every expectation, in order."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _COMMENT.search(line)
        if match:
            found += [(number, int(column or 0), rule) for rule, column in _EXPECTED.findall(match[1])]
    return sorted(found)
