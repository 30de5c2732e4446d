"""Pages that are made when the site is built: the command line's help, and the leaderboard of the zoo.

A hook of MkDocs. Links that lead out of docs/, into the source, are shown as plain names: the site stands alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
import yaml
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    files.append(File.generated(config, "zoo.md", content=leaderboard()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files outside docs/ become their text."""
    here = Path(config["docs_dir"]) / Path(page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        is_page = target.suffix in (".md", ".png", ".svg") and target.is_relative_to(config["docs_dir"])
        return match[0] if is_page or match[2].startswith(("http", "#")) else match[1]

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("```") else re.sub(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)[^)]*\)", kept, part)
        for part in parts
    )


def command_line() -> str:
    """Every command with its arguments, options and examples."""
    from lipgraft.cli import app

    parts = [
        "# Command line",
        "`lipgraft COMMAND --help` says the same. Exit codes: 0, 1 error, 2 wrong usage, 130 Ctrl-C.",
    ]
    parts += _commands(typer.main.get_command(app), "lipgraft")
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: str) -> list[str]:
    if hasattr(command, "commands"):
        return [part for name, inner in command.commands.items() for part in _commands(inner, f"{path} {name}")]
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        name = ", ".join(parameter.opts) if parameter.opts[0].startswith("-") else parameter.name.upper()
        default = "" if parameter.default is None or callable(parameter.default) else f"`{parameter.default}`"
        rows.append(
            f"| `{name}` | {default} | {(getattr(parameter, 'help', None) or '').replace('|', chr(92) + '|')} |"
        )
    table = ["| | default | |", "|---|---|---|", *rows] if rows else []
    examples = [line for line in (command.epilog or "").splitlines() if line.startswith("lipgraft")]
    shown = ["```bash\n" + "\n".join(examples) + "\n```"] if examples else []
    return [f"## {path}", _paragraph(command.help), *(["\n".join(table)] if table else []), *shown]


def _paragraph(text: str | None) -> str:
    return "\n".join(line.strip() for line in (text or "").splitlines())


def leaderboard() -> str:
    """The networks of the zoo, best verified accuracy first within each data set and radius."""
    cards = [(file.stem, yaml.safe_load(file.read_text(encoding="utf-8"))) for file in (ROOT / "zoo").glob("*.yaml")]
    cards.sort(key=lambda card: (card[1]["data"], str(card[1]["eps"]), -card[1]["measured"]["va"]))
    lines = [
        "| model | data | eps | SA % | RA % | VA % | open | images | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    details = []
    for name, card in cards:
        m = card["measured"]
        ra = m.get("ra", m["attacked"])
        figures = (m["sa"], ra, m["va"], m["open"], m["images"], m["seconds"])
        lines.append(f"| `zoo/{name}` | {card['data']} | {card['eps']} | " + " | ".join(map(str, figures)) + " |")
        details.append(f"**{name}**: {card['about']} Seed {card['seed']}, {card['hardware']}, `{card['made']}`.")
    about = (
        "Trained networks with a card of what was measured on each; `lipgraft zoo list` shows them, and "
        "`lipgraft verify zoo/NAME` takes them. VA is over the first test images, SA and RA too unless RA was measured "
        "by PGD on all of them. Seconds are for all images together, on the hardware named below."
    )
    return "---\nhide: [toc]\n---\n\n" + "\n\n".join(["# The zoo", about, "\n".join(lines), *details]) + "\n"
