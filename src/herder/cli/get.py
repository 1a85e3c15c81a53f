"""`herder get`: list objects as a server-side table, or print them as YAML or JSON."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.management.names import DEFAULT_WORKSPACE
from herder.app.host.paths import kubeconfig_option
from herder.app.host.process import wall_clock
from herder.cli.client import ask
from herder.cli.cluster.owned import own_objects
from herder.cli.examples import examples
from herder.cli.object_tables import MEDIA_TYPE, is_machine, is_of_workspace, own_table, plain_table
from herder.cli.terminal import escaped
from herder.engine.client.client import Client
from herder.engine.client.discovery import Found, find_resource
from herder.engine.client.kubeconfig import RestConfig
from herder.engine.meta.errors import Expired, Forbidden, ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query

DATA = ("yaml", "json", "name")
POLL_SECONDS = 1.0


@click.command(
    epilog=examples(
        "herder get clusters -A",
        "herder get machines -o wide",
        "herder get machines -w",
        "herder get secrets -n fleet-default -l app=web -o name",
        "herder get clusters meadow -n fleet-default -o yaml",
        "herder get configmaps --at 1234",
    )
)
@click.argument("resource")
@click.argument("names", nargs=-1)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the objects. Default: the namespace of the kubeconfig; for clusters and machines, if it has "
    f"none, {DEFAULT_WORKSPACE}.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="List objects in all namespaces.")
@click.option("-l", "--selector", metavar="SELECTOR", default="", help="Label selector, such as app=web,tier!=cache.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "yaml", "json", "name"]),
    help="Output format: wide, yaml, json or name. Default: table.",
)
@click.option("-w", "--watch", is_flag=True, help="Print each change until you press Ctrl-C.")
@click.option(
    "--at",
    "revision",
    metavar="REVISION",
    help="Read the objects as of this resourceVersion. Only with the embedded server.",
)
@kubeconfig_option
def command(
    resource: str,
    names: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    selector: str,
    output: str | None,
    watch: bool,
    revision: str | None,
    kubeconfig: str | None,
) -> None:
    """List objects of the type RESOURCE, or show those named NAMES.

    RESOURCE is a plural, singular or short name, optionally with its API group: clusters.cluster.x-k8s.io. Users see
    the clusters and machines that they have access to.
    """
    if watch and revision:
        raise click.UsageError("--watch and --at are mutually exclusive")

    async def get(client: Client, connection: RestConfig) -> None:
        # `clusters` means provisioning Clusters
        found = await find_resource(client, resource, prefer=PROVISIONING_CLUSTER.group)
        where = "" if all_namespaces else namespace or _default_namespace(found, connection)
        request = Listing(found, where if found.namespaced else "", names, selector, output or "", revision or "")
        try:
            await _list(client, request, watch)
        except Forbidden:
            if not is_of_workspace(found.resource.group_resource) or selector or revision:
                raise
            await _list_own(client, request, watch)

    ask(kubeconfig, get)


@dataclass
class Listing:
    """What to list, and how to print it."""

    found: Found
    namespace: str  # empty: all
    names: tuple[str, ...]
    selector: str
    output: str
    revision: str
    widths: list[int] = field(default_factory=list)  # of the columns printed so far

    @property
    def is_data(self) -> bool:
        return self.output in DATA


def _default_namespace(found: Found, connection: RestConfig) -> str:
    is_chosen = connection.namespace not in ("", "default")
    if is_chosen or not is_of_workspace(found.resource.group_resource):
        return connection.namespace
    return DEFAULT_WORKSPACE


# --- from the API server --------------------------------------------------------------------------------------------


async def _list(client: Client, request: Listing, watch: bool) -> None:
    path = request.found.resource.path(request.namespace)
    as_objects = request.is_data or is_machine(request.found)
    answer = await _fetch(client, path, _query(request), "application/json" if as_objects else MEDIA_TYPE)
    version = str((answer.get("metadata") or {}).get("resourceVersion") or "")
    items = _items(answer)
    if request.is_data:
        _print_objects(items, request)
    else:
        table = answer if answer["kind"] == "Table" else _table(request.found, items)
        _print_table(table, request, is_first=True)
    if watch:
        await _watch(client, request, version, as_objects)


async def _watch(client: Client, request: Listing, version: str, as_objects: bool) -> None:
    fields = f"metadata.name={request.names[0]}" if len(request.names) == 1 else ""
    columns: list[Object] = []
    while True:
        events = client.watch(
            request.found.resource,
            namespace=request.namespace,
            labels=request.selector,
            fields=fields,
            resource_version=version,
            media_type="" if as_objects else MEDIA_TYPE,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    version = str((event.object.get("metadata") or {}).get("resourceVersion") or version)
                    if event.type == "BOOKMARK":
                        continue
                    if request.is_data:
                        _print_objects(_named([event.object], request), request)
                        continue
                    is_table = event.object.get("kind") == "Table"
                    table = event.object if is_table else _table(request.found, [event.object])
                    columns = table.get("columnDefinitions") or columns  # only in the first event
                    rows = _named(table.get("rows") or [], request)
                    _print_table({**table, "columnDefinitions": columns, "rows": rows}, request)
        except Expired:
            version = ""


def _query(request: Listing) -> Query:
    query = Query()
    if request.selector:
        query.items.append(("labelSelector", request.selector))
    if len(request.names) == 1:
        query.items.append(("fieldSelector", f"metadata.name={request.names[0]}"))
    if request.revision:
        query.items += [("resourceVersion", request.revision), ("resourceVersionMatch", "Exact")]
    return query


async def _fetch(client: Client, path: str, query: Query, accept: str) -> Object:
    response = await client.raw("GET", path, query, headers={"accept": accept})
    try:
        answer: Object = json.loads(response.content())
    except ValueError:
        raise ServiceUnavailable(
            f"{path}: HTTP {response.status} without a Kubernetes API object; check the server address"
        ) from None
    if response.status >= 400:
        raise StatusError.from_status(answer, response.status)
    return answer


def _items(answer: Object) -> list[Object]:
    kind = str(answer["kind"]).removesuffix("List")
    return [{"apiVersion": answer["apiVersion"], "kind": kind, **item} for item in answer.get("items") or []]


# --- of the user's clusters -----------------------------------------------------------------------------------------


async def _list_own(client: Client, request: Listing, watch: bool) -> None:
    """Objects of the user's clusters, from the manager: users may not list those of all clusters."""
    shown: dict[str, Object] | None = None
    while True:
        objects = await own_objects(client)
        items = [each for each in objects if _is_requested(each, request)]
        new = items if shown is None else [each for each in items if shown.get(each["metadata"]["uid"]) != each]
        if request.is_data and (new or shown is None):
            _print_objects(new, request)
        elif not request.is_data:
            table = own_table(request.found, new, wall_clock())
            _print_table(table, request, is_first=shown is None)
        if not watch:
            return
        shown = {each["metadata"]["uid"]: each for each in items}
        await asyncio.sleep(POLL_SECONDS)


def _is_requested(obj: Object, request: Listing) -> bool:
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    is_kind = (group, obj.get("kind")) == (request.found.resource.group, request.found.kind)
    return is_kind and request.namespace in ("", obj["metadata"].get("namespace"))


# --- output ---------------------------------------------------------------------------------------------------------


def _print_objects(items: list[Object], request: Listing) -> None:
    chosen = _only(items, request.names, lambda item: item["metadata"]["name"])
    if request.output == "name":
        for item in chosen:
            click.echo(escaped(f"{request.found.resource.group_resource}/{item['metadata']['name']}"))
        return
    shown: Any = chosen[0] if len(request.names) == 1 else {"apiVersion": "v1", "kind": "List", "items": chosen}
    print_data(shown, request.output)


def print_data(shown: Object, output: str) -> None:
    """Print an object as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)


def _table(found: Found, items: list[Object]) -> Object:
    return own_table(found, items, wall_clock()) if is_machine(found) else plain_table(items)


def _print_table(table: Object, request: Listing, *, is_first: bool = False) -> None:
    """Print rows, with the header if they are the first ones. Later rows keep the widths of the columns."""
    rows = _only(table.get("rows") or [], request.names if is_first else (), _row_name)
    if not rows:
        if is_first:
            kind, namespace = request.found.resource.group_resource, request.namespace
            where = f" in namespace {namespace}; use -A for all namespaces" if namespace else ""
            click.echo(escaped(f"No {kind} found{where}"), err=True)
        return
    columns = [
        (position, column["name"].upper())
        for position, column in enumerate(table["columnDefinitions"])
        if request.output == "wide" or not column.get("priority")
    ]
    lines = [["" if (cell := row["cells"][i]) is None else str(cell) for i, _ in columns] for row in rows]
    header = [name for _, name in columns]
    if request.found.namespaced and not request.namespace:
        lines = [
            [str(row["object"]["metadata"].get("namespace", "")), *line] for row, line in zip(rows, lines, strict=True)
        ]
        header = ["NAMESPACE", *header]
    if not request.widths:
        request.widths = [0] * len(header)
        lines = [header, *lines]
    # Also headers and namespaces: the server may be a hostile cluster.
    lines = [[escaped(str(cell)) for cell in line] for line in lines]
    request.widths = [max(width, *(len(line[i]) for line in lines)) for i, width in enumerate(request.widths)]
    for line in lines:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(line, request.widths, strict=True)).rstrip())


def _row_name(row: Object) -> str:
    return str(row["object"]["metadata"]["name"])


def _named(items: list[Any], request: Listing) -> list[Any]:
    """Items that the user named; all without names."""
    if not request.names:
        return items
    return [each for each in items if (each.get("object") or each)["metadata"]["name"] in request.names]


def _only(items: list[Any], names: tuple[str, ...], name_of: Any) -> list[Any]:
    if not names:
        return items
    missing = [name for name in names if name not in {name_of(item) for item in items}]
    if missing:
        raise click.ClickException(f"not found: {', '.join(missing)}")
    return [item for item in items if name_of(item) in names]
