# SPDX-License-Identifier: Apache-2.0

"""Check the built manual in a browser, at the width of a desktop and of a telephone.

No element is wider than the page, unless it scrolls; no word of a table is broken, or
leaves its cell. ``check_layout.html`` has the measurements.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

#: Debian's package has the same name.
BROWSER = "chromium-headless-shell"
_HARNESS = Path(__file__).with_suffix(".html")
_SECONDS = 300
_OPTIONS = (
    # Continuous integration is root in a container with a small /dev/shm.
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    "--allow-file-access-from-files",
    # The theme loads scripts of search and of statistics.
    *("--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"),
    # The time for the browser's clock stands still while a page is loaded.
    "--virtual-time-budget=1000000",
    "--dump-dom",
)


def faults(directory: Path, browser: str = BROWSER) -> tuple[int, list[str]]:
    """Return the number of the pages below a directory, and their faults.

    :raises OSError: there is no browser.
    :raises ValueError: it has not measured all pages.
    """
    pages = sorted(
        each.relative_to(directory).as_posix() for each in directory.rglob("*.html")
    )
    base = directory.resolve().as_uri() + "/"
    fragment = urllib.parse.quote(json.dumps([base, *pages]))
    ran = subprocess.run(
        [browser, *_OPTIONS, f"{_HARNESS.as_uri()}#{fragment}"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    dumped = re.search(r'<pre id="faults">(\[.*?\])</pre>', ran.stdout, re.DOTALL)
    if dumped is None:
        raise ValueError(f"{browser} has measured nothing: {ran.stderr}")
    measured, found = json.loads(html.unescape(dumped[1]))
    if measured != len(pages):
        raise ValueError(f"{browser} has measured {measured} of {len(pages)} pages")
    return measured, found


def main(directory: str) -> int:
    pages, found = faults(Path(directory))
    for each in found:
        print(each, file=sys.stderr)
    print(f"{pages} pages, {len(found)} faults of the layout")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
