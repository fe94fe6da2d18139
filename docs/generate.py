"""A page for every row of the table of theorems, made when the documentation is built (an mkdocs
hook).

Nothing on those pages is written by hand: formula, assumptions, regime and source come from the
rows and their files, the example is accounted and drawn while the page is made.
"""

from __future__ import annotations

import html
import re
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from lastiterate.report.plots import theorem_over_steps
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Theorem, match

DELTA, POINTS = 1e-5, 16
KINDS = {
    "upper": "An upper bound: it can certify.",
    "lower": "A lower bound: some loss of the class leaks at least this much. It never certifies.",
    "exact": "Exact: an upper and a lower bound.",
    "claimed": "A published claim without a valid proof. It is shown for comparison and never "
    "certifies.",
}
NOTE = re.compile(r"docs/theorems/([a-z-]+)(\.md)?")
WRITTEN = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)
"""A formula that a page has between dollars, as the extension of Markdown leaves it: a span, or a
div on its own."""
LONG = 40
"""Letters of LaTeX from which a formula in a sentence may be wider than a phone, and scrolls by
itself."""


def marked(text: str) -> str:
    """Plain text as Markdown: nothing in it is markup, and mentions of proof notes are links from
    ``table/``."""
    plain = re.sub(r"([\\*_`\[\]|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))
    return NOTE.sub(r"[\1](../theorems/\1.md)", plain)


def mathematics(name: str) -> str:
    """A formula as MathML, which browsers set by themselves: no script, and nothing that is loaded;
    a line a part."""
    return "\n".join(mathml(part, "block") for part in TABLE[name].latex.split(r"\quad"))


def mathml(tex: str, display: str) -> str:
    """LaTeX as MathML on one line; ``display``: ``block`` or ``inline``."""
    from latex2mathml.converter import convert

    return convert(tex.strip(), display=display).replace("\n", " ")


def page(theorem: Theorem) -> str:
    """The page of one theorem, in Markdown."""
    title, text = theorem.title, theorem.text
    run = theorem.example
    epsilon = match(theorem, run).bound.epsilon(DELTA)  # pyright: ignore
    shown = {"lower": f"at least {epsilon:.3f}", "claimed": f"claimed to be {epsilon:.3f}"}.get(
        theorem.kind, f"at most {epsilon:.3f}"
    )
    needs = "\n".join(f"| `{a.name}` | {marked(a.needs)} |" for a in theorem.assumptions)
    remark = f"\n{marked(theorem.remark)}\n" if theorem.remark else ""
    return f"""# {theorem.name}

{marked(title)}

*{KINDS[theorem.kind]}*

{mathematics(theorem.name)}

```text
{theorem.formula}
```

{marked(text)}
{remark}
## Assumptions

| name | requirement |
|---|---|
{needs}

## Source

{marked(theorem.citation)}

## Example

At delta = {DELTA:g} epsilon is {shown} for the run below. The picture has any number of steps up to its own, and the
other theorems that apply to it.

![epsilon over steps]({theorem.name}.png)

```json
{run.to_json()}
```
"""


def overview() -> str:
    """The page that lists all theorems."""
    rows = "\n".join(
        f"| [{t.name}]({t.name}.md) | {t.kind} | {marked(t.title)} |" for t in TABLE.values()
    )
    return f"""# Every theorem

Each theorem has a page; `lastiterate theorems` prints the same list. *Upper* bounds can certify. No analysis can beat
*lower* bounds. *Claimed* ones are refuted or unproved and never certify.

| theorem | kind | |
|---|---|---|
{rows}
"""


@lru_cache(maxsize=1)
def pictures() -> dict[str, bytes]:
    """A picture for every theorem, as PNG."""
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, theorem in TABLE.items():
            path = Path(folder) / f"{name}.png"
            theorem_over_steps(theorem, DELTA, path, points=POINTS)
            found[name] = path.read_bytes()
    return found


def on_config(config: Any) -> Any:
    """Put the generated pages at the beginning of the section Theorems."""
    pages = [{name: f"table/{name}.md"} for name in TABLE]
    section = next(part["Theorems"] for part in config.nav if "Theorems" in part)
    section.insert(0, {"Every theorem": ["table/index.md", *pages]})
    return config


def on_page_content(text: str, **_: Any) -> str:
    """Set the formulas that a page has between dollars."""

    def one(found: re.Match[str]) -> str:
        tex = html.unescape(found[2])
        if found[1] == "div":
            return mathml(tex, "block")
        made = mathml(tex, "inline")
        return made if len(tex) < LONG else f'<span class="long-formula">{made}</span>'

    return WRITTEN.sub(one, text)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and pictures; leave this file out of the site."""
    from mkdocs.structure.files import File

    made: dict[str, str | bytes] = {"table/index.md": overview()}
    made |= {f"table/{name}.md": page(theorem) for name, theorem in TABLE.items()}
    made |= {f"table/{name}.png": picture for name, picture in pictures().items()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    files.remove(files.get_file_from_path("generate.py"))
    return files


if __name__ == "__main__":
    sys.stdout.write(page(TABLE[sys.argv[1]]) if len(sys.argv) > 1 else overview())
