"""Check that links between the pages lead somewhere: ``python tests/harness/check_links.py PAGE...``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Return one line for each link of a page that leads nowhere."""
    found = []
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path = (page.parent / target) if target else page
        if not path.exists():
            found.append(f"{page}: '{target}' does not exist")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            found.append(f"{page}: '{target}' has no heading '#{anchor}'")
    return found


def main(pages: list[str]) -> int:
    """Print the broken links; return 1 if there are any."""
    lines = [line for page in pages for line in broken(Path(page))]
    print("\n".join(lines) or f"All links in {len(pages)} pages lead somewhere.")  # noqa: T201 - it is a command
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
