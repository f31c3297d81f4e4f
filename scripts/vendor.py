"""Copy the pages' libraries out of npm's packages: the files that browsers load, unchanged, and their licences.

    npm install --prefix DIRECTORY --ignore-scripts marked dompurify katex @highlightjs/cdn-assets
    python scripts/vendor.py DIRECTORY/node_modules

To renew them, install newer packages and run this again; the tests of the pages say whether they still do what they have to.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[1] / "server" / "page" / "static" / "vendor"

FILES = {
    "marked": "lib/marked.esm.js",
    "dompurify": "dist/purify.min.js",
    "katex": "dist/katex.min.js",
    "@highlightjs/cdn-assets": "es/highlight.min.js",
}


def entry(package: Path, name: str, file: str) -> str:
    """What is written down of a library: name, version, source, digest and the licence's text."""
    told = json.loads((package / "package.json").read_text())
    repository = told["repository"]
    source = repository if isinstance(repository, str) else repository["url"]
    digest = hashlib.sha256((package / file).read_bytes()).hexdigest()
    head = f"{Path(file).name}\nname: {name}\nversion: {told['version']}\nsource: {source}, {file} of the npm package\n"
    return f"{head}licence: {told['license']}\nsha256: {digest}\n\n{(package / 'LICENSE').read_text().strip()}\n"


def main(modules: Path) -> None:
    VENDOR.mkdir(exist_ok=True)
    entries = []
    for name, file in FILES.items():
        shutil.copyfile(modules / name / file, VENDOR / Path(file).name)
        entries.append(entry(modules / name, name, file))
    (VENDOR / "LICENSES.txt").write_text(f"\n{'-' * 80}\n".join(entries))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
