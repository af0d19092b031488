"""The examples of the documentation run as they stand, and the pages keep their rules."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Final

import click
import pytest

from docs._tools.tables import PAGES as PAGES_WITH_TABLES
from imagestore import platforms
from imagestore.cli.main import cli
from tests.unit.docs.pages import DOCS, TOP, blocks, needs_servers, pages
from tests.unit.docs.session import Session

PAGES = pages()
NAMES = [str(path.relative_to(TOP)) for path in PAGES]
#: Whose examples need no servers; tests/integration/test_docs.py has the others.
ALONE = [path for path in PAGES if not needs_servers(path)]
#: Without the specification of tapes.
PROSE = [path for path in PAGES if path.name != "tape-format.md"]
#: What programs may import; docs/reference/api lists them.
PUBLIC: Final = {
    "imagestore",
    "imagestore.aio",
    "imagestore.content",
    "imagestore.cri.client",
    "imagestore.errors",
    "imagestore.metadata",
    "imagestore.node",
    "imagestore.platforms",
    "imagestore.publish",
    "imagestore.registry",
    "imagestore.resources",
    "imagestore.testing",
    "imagestore.testing.contracts",
}
#: How projects switch the plug-in on; a name for pytest, not for imports.
PYTEST_PLUGIN: Final = "imagestore.testing.pytest_plugin"
NAMES_OF_FILES: Final = (".service", ".sock")
#: Pages of lists and of words, without a task.
NO_TASK: Final = {"glossary.md", "mirror/how-it-works.md", "reference/metrics.md", "reference/tape-format.md"}
#: Languages of blocks that a session runs.
EXECUTED: Final = {"console", "python", "pycon", "sql"}
MOST_WORDS: Final = 60
MOST_DECISIONS: Final = 15
MOST_WORDS_OF_A_DECISION: Final = 250
#: PostgreSQL's and its library's.
SERVERS_WORDS: Final = (
    "too many clients already",
    "due to lock timeout",
    "in a read-only transaction",
    "couldn't get a connection",
)


def node_of(text: str) -> str:
    """The platform of the node that a page plays, from its comment ``<!-- node: ... -->``."""
    found = re.search(r"<!-- node: (\S+) -->", text)
    return found[1] if found else "linux/amd64"


@pytest.mark.parametrize("page", ALONE, ids=[str(path.relative_to(TOP)) for path in ALONE])
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text("utf-8")
    with Session(tmp_path, monkeypatch, node_of(text)) as session:
        for block in blocks(text):
            session.run(block)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_lines_for_a_shell_have_commands_and_options_that_exist(page: Path) -> None:
    for block in blocks(page.read_text("utf-8")):
        for line in block.text.splitlines() if block.language == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["imagestore"]:
                assert _unknown(words[1:]) == [], line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_has_an_example(page: Path) -> None:
    name = page.relative_to(TOP).as_posix().removeprefix("docs/")
    made = name.startswith("reference/api/")
    text = page.read_text("utf-8")
    assert made or name in NO_TASK or any(block.language in EXECUTED for block in blocks(text))


@pytest.mark.parametrize("page", PROSE, ids=[str(path.relative_to(TOP)) for path in PROSE])
def test_paragraphs_are_short(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *(?:[-*|!#]|\d+\.) ?", "\n", text, flags=re.MULTILINE)
    long = [part for part in re.split(r"\n\s*\n", prose) if len(part.split()) > MOST_WORDS]
    assert long == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_names_public_modules_only(page: Path) -> None:
    text = page.read_text("utf-8").replace(PYTEST_PLUGIN, "")
    imported = re.findall(r"(?:from|import) (imagestore[\w.]*)", text)
    named = [each for each in re.findall(r"`(imagestore(?:\.[a-z_]+)+)", text) if not each.endswith(NAMES_OF_FILES)]
    assert {name for name in (*imported, *named) if not _is_public(name)} == set()


def test_the_example_of_both_ports_uses_public_names_and_is_short() -> None:
    text = (TOP / "examples" / "adapters.py").read_text("utf-8")
    imported = [
        f"{node.module}.{each.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("imagestore")
        for each in node.names
    ]
    assert len(imported) > 5
    assert [name for name in imported if not _is_public(name)] == []
    adapters = text.partition("class Stream")[2].partition("def main")[0]
    assert len([line for line in adapters.splitlines() if line.strip()]) <= 60


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_configurations_begin_with_their_version(page: Path) -> None:
    """Without one it is version 1, in which containerd wants other names of plugins."""
    for block in blocks(page.read_text("utf-8")):
        if block.language == "toml" and "plugins" in block.text:
            assert re.match(r"version = [23]\n", block.text), block.line


def test_links_of_the_readme_lead_to_files() -> None:
    """The project has no address of its own yet."""
    links = re.findall(r"\]\(([^)]+)\)", (TOP / "README.md").read_text("utf-8"))
    own = [link.partition("#")[0] for link in links if "://" not in link]
    assert own
    assert [link for link in own if link and not (TOP / link).exists()] == []


def test_every_page_with_a_made_table_is_known() -> None:
    found = {
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "<!-- made:" in page.read_text("utf-8")
    }
    assert found == set(PAGES_WITH_TABLES)


def test_the_page_on_matching_has_every_rule_that_refuses() -> None:
    text = (DOCS / "matching.md").read_text("utf-8")
    assert [rule for rule in platforms.Rule if not rule.startswith("match") and f"| `{rule}` |" not in text] == []


def test_contributing_leads_to_folders_that_exist() -> None:
    text = (TOP / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:imagestore|tests|docs)/[\w/]*)`", text)
    assert len(named) > 20
    assert [name for name in named if not (TOP / name).is_dir()] == []


def test_decisions_are_few_and_short_and_name_modules_that_exist() -> None:
    decisions = sorted((DOCS / "decisions").glob("0*.md"))
    assert len(decisions) <= MOST_DECISIONS
    for path in decisions:
        text = path.read_text().rpartition("---\n")[2]
        assert len(text.split()) <= MOST_WORDS_OF_A_DECISION, path.name
        for name in re.findall(r"`([a-z_/]+\.py|[a-z_]+/[a-z_/]+/)`", text):
            assert (TOP / name).exists() or (TOP / "imagestore" / name).exists(), f"{path.name}: {name}"


def test_each_promise_of_the_threat_model_names_its_tests() -> None:
    rows = [row for row in (TOP / "SECURITY.md").read_text("utf-8").splitlines() if row.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| against", "|---"))]
    named = [re.findall(r"`(tests/[\w/]+(?:\.py)?)`", row.split("|")[3]) for row in promises]
    assert len(promises) > 20
    assert [row for row, tests in zip(promises, named, strict=True) if not tests] == []
    assert [path for tests in named for path in tests if not (TOP / path).exists()] == []


def test_symptoms_of_a_shared_store_are_worded_as_the_program_does() -> None:
    text = (DOCS / "shared-store" / "troubleshooting.md").read_text("utf-8")
    rows = text.partition("## Symptoms\n")[2].partition("\n## ")[0].splitlines()[3:]
    named = [words for row in rows for words in re.findall("`([^`]+)`", row.split("|")[1]) if row.startswith("| `")]
    source = "".join(path.read_text("utf-8") for path in (TOP / "imagestore").rglob("*.py"))
    assert len(named) > 15
    assert [words for words in named if words not in source and words not in SERVERS_WORDS] == []


def _is_public(name: str) -> bool:
    """Whether it is a public module, or a name in one."""
    module = name
    while module not in PUBLIC and "." in module:
        module = module.rpartition(".")[0]
    rest = name.removeprefix(module).strip(".").split(".")
    return len(rest) == 1 and (not rest[0] or hasattr(__import__(module, fromlist=["_"]), rest[0]))


def _unknown(words: list[str]) -> list[str]:
    """The options of a command line that its command, or the program, doesn't have.

    Raises:
        AssertionError: there is no such command.
    """
    command: click.Command = cli
    options = {name for param in cli.params for name in param.opts}
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        if found is not None:
            command = found
    assert not isinstance(command, click.Group), words
    options |= {name for param in command.params for name in param.opts} | {"--help", "--version"}
    ours = words[: words.index("--")] if "--" in words else words
    return [word for word in ours if word.startswith("-") and word.partition("=")[0] not in options]
