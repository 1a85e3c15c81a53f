"""Generated tables in the docs are up to date, links have targets, and the examples work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from herder.api.capi.kinds import CLUSTER
from herder.api.guards import machines as guards
from herder.api.inmemory import names
from herder.api.inmemory.kinds import GROUP, IN_MEMORY_CLUSTER
from herder.api.machines.kinds import kinds_of
from herder.api.settings import DEFINITIONS
from tests.support.capi import CORE_KINDS, PROVIDER_KINDS, wait_until, wait_until_served
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import Engine
from tests.support.manager import machines
from tools import compatibility_page, fields_page, rights_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
IN_MEMORY, CORE, SERVER = DOCS / "in-memory-clusters.md", DOCS / "cluster-api-core.md", DOCS / "embedded-server.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_tables_of_differences_match_the_tests() -> None:
    page = compatibility_page.PAGE.read_text()
    assert compatibility_page.rendered(page) == page, "python -m tools.compatibility_page"


def test_the_field_table_is_up_to_date() -> None:
    page = fields_page.PAGE.path.read_text()
    assert fields_page.PAGE.rendered(page) == page, "python -m tools.fields_page"


def test_the_table_of_rights_is_up_to_date() -> None:
    page = rights_page.PAGE.path.read_text()
    assert rights_page.PAGE.rendered(page) == page, "python -m tools.rights_page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_have_targets(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        assert anchor in _anchors(page.parent / target if target else page), f"{target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: one per heading, as GitHub derives them, and explicit ones for old links."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    derived = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return derived | set(re.findall(r'<a id="([\w-]+)"></a>', text))


def test_the_index_links_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index.read_text())}
    pages = {*index.parent.glob("*.md"), *index.parent.glob("operations/*.md")}
    unlisted = pages - linked - {index}
    assert not unlisted, "docs/README.md: add a line that says which question the page answers"


def test_the_readme_links_the_index() -> None:
    assert "](docs/README.md)" in (ROOT / "README.md").read_text()


def test_tests_named_in_docs_exist() -> None:
    named = re.findall(r"`(tests/[\w/.]+|…/[\w/.]+)`", compatibility_page.PAGE.read_text())
    paths = [name.replace("…", "tests/unit/controllers/capi") for name in named]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"^\| `([\w-]+)` \|", SERVER.read_text(), re.MULTILINE))
    assert set(DEFINITIONS) <= documented


def test_every_in_memory_annotation_is_documented() -> None:
    values = {value for value in vars(names).values() if isinstance(value, str) and value.startswith(f"{GROUP}/")}
    documented = set(re.findall(r"^\| `([\w-]+)` \| (?:InMemory|all)", IN_MEMORY.read_text(), re.MULTILINE))
    assert documented == {value.removeprefix(f"{GROUP}/") for value in values}


def test_every_machine_guard_is_documented() -> None:
    source = Path(guards.__file__).read_text()
    documented = set(re.findall(r"^\| `([\w-]+)` \|", CORE.read_text(), re.MULTILINE))
    assert set(re.findall(r'_refuse\("([\w-]+)"', source)) <= documented


async def test_machines_of_the_example_run_their_bootstrap_script(tmp_path: Path) -> None:
    with machines.embedded(tmp_path) as provider:
        engine = provider.engine
        client = engine.client()
        try:
            await wait_until_served(client, CLUSTER, IN_MEMORY_CLUSTER, kinds_of("process").template)
            engine.kubectl("apply", "-f", str(ROOT / "examples" / "process-machines.yaml"))
            found = await wait_until(client, kinds_of("process").machine, "default", machines.all_created(3))
        finally:
            await client.close()
        name = found[0]["metadata"]["name"]
        variables = os.environ | {"KUBECONFIG": str(engine.kubeconfig)}
        output = subprocess.run(
            [HERDER, "ssh", name, "--", "cat", "/root/hello"], env=variables, capture_output=True, text=True, check=True
        )
        assert output.stdout == f"{name} was here\n"
        engine.kubectl("delete", "cluster", "pasture", "--timeout=60s")


async def test_the_example_cluster_becomes_available_and_is_deleted(tmp_path: Path) -> None:
    with Embedded(tmp_path, flags=("--in-memory",)) as server:
        engine = Engine("embedded", server.kubeconfig)
        client = engine.client()
        try:
            await wait_until_served(client, *CORE_KINDS, *PROVIDER_KINDS)
        finally:
            await client.close()
        engine.kubectl("apply", "-f", str(ROOT / "examples" / "in-memory-cluster.yaml"))
        engine.kubectl("wait", "cluster/meadow", "--for=condition=Available", "--timeout=60s")
        engine.kubectl("delete", "cluster", "meadow", "--timeout=60s")
