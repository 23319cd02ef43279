"""Build the documentation as a web site with a search, into site/: `make site`.

The tables of contents are docs/index.md and docs/zh/index.md; what the site shows beside a page is taken from them, so a new
page is linked in one place. A broken link or anchor fails the build; a link out of docs/, which the site does not have, becomes the
file's name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#:]+\.md)\)")
LINK_WITH_TEXT = re.compile(r"\[([^\]]*)\]\(([^)#:]+\.md)\)")
COPY = ROOT / "build" / "docs"
CONFIG = """\
[project]
site_name = "Diana"
site_description = "A rate limiter for Python web applications."
docs_dir = "build/docs"
site_dir = "site"
nav = [
    {nav},
]

[project.theme]
font = false
features = ["navigation.indexes", "navigation.top", "content.code.copy", "search.highlight"]

[[project.theme.palette]]
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.plugins.search]

[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}

[project.markdown_extensions.tables]

[project.markdown_extensions.pymdownx.highlight]

[project.markdown_extensions.pymdownx.superfences]
"""


def contents(index: Path) -> list[tuple[str, list[str]]]:
    """Each heading of the page, and the pages that are linked below it: from docs/, each once."""
    seen = {index.resolve()}
    parts: list[tuple[str, list[str]]] = []
    for section in re.split(r"^#+ ", index.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        pages = []
        for target in LINK.findall(text):
            page = (index.parent / target).resolve()
            if page not in seen and DOCS in page.parents:
                seen.add(page)
                pages.append(page.relative_to(DOCS).as_posix())
        parts.append((title, pages))
    return parts


def nav() -> list[str]:
    lines = ['"index.md"']
    for title, pages in contents(DOCS / "index.md"):
        if own := [page for page in pages if not page.startswith("zh/")]:
            lines.append(f"{{ {json.dumps(title)} = {json.dumps(own)} }}")
    chinese = [page for _, pages in contents(DOCS / "zh" / "index.md") for page in pages]
    pages = ["zh/index.md", *(page for page in chinese if page.startswith("zh/"))]
    lines.append(f'{{ "中文" = {json.dumps(pages)} }}')
    return lines


def copy_pages() -> None:
    for page in DOCS.rglob("*.md"):
        copy = COPY / page.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text(encoding="utf-8")
        copy.write_text(without_links_out(text, page.parent), encoding="utf-8")


def without_links_out(text: str, folder: Path) -> str:
    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        stays = DOCS in target.parents or not target.exists()
        return link[0] if stays else f"{link[1]} (`{target.relative_to(ROOT)}`)"

    return LINK_WITH_TEXT.sub(shown, text)


def build() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    copy_pages()
    config = ROOT / "zensical.toml"
    config.write_text(CONFIG.format(nav=",\n    ".join(nav())), encoding="utf-8")
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    try:
        subprocess.run([*zensical, "--config-file", str(config)], cwd=ROOT, check=True)  # noqa: S603
    finally:
        config.unlink()


def search_in_chinese_too() -> None:
    """The search cuts Chinese into words if it knows of it, and there is no setting for a site in two languages."""
    index = ROOT / "site" / "search.json"
    search = json.loads(index.read_text(encoding="utf-8"))
    search["config"]["lang"] = ["en", "zh"]
    index.write_text(json.dumps(search, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    try:
        build()
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)
    search_in_chinese_too()
