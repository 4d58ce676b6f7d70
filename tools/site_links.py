"""Hook of MkDocs: pages of the repository outside docs/, and links to its files, in the site.

CONTRIBUTING.md becomes the page contributing.md. Other links that leave docs/ lead to files of the
source tree, which the site does not have: their text stays, the link goes. A link to a file that
does not exist is left as it is, so that the strict build fails on it.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]: site only

ROOT = Path(__file__).resolve().parent.parent
ADDED = {"CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    for source, name in ADDED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    docs = Path(config.docs_dir)
    generated = {name: source for source, name in ADDED.items()}
    uri: str = page.file.src_uri
    here = (ROOT / generated[uri]).parent if uri in generated else (docs / uri).parent

    def rewritten(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path, mark, anchor = target.partition("#")
        if not path or "://" in target:
            return found[0]
        leads_to = (here / path).resolve()
        if uri in generated and leads_to.is_relative_to(docs):
            return f"[{text}]({leads_to.relative_to(docs).as_posix()}{mark}{anchor})"
        if leads_to.is_relative_to(docs) or not leads_to.exists():
            return found[0]
        added = ADDED.get(leads_to.relative_to(ROOT).as_posix())
        if added is None:
            return text
        up = "../" * uri.count("/")
        return f"[{text}]({up}{added}{mark}{anchor})"

    return LINK.sub(rewritten, markdown)
