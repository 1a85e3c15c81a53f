"""`herder get`: list objects as a server-side table, or print them as YAML or JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from herder.api.capi.kinds import MACHINE
from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.api.rke.machine_health import machine_reason
from herder.app.paths import kubeconfig_option, kubeconfig_path
from herder.cli.examples import examples
from herder.cli.terminal import escaped
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.discovery import Found, find_resource
from herder.engine.meta.errors import ServiceUnavailable, StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Query

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@click.command(
    epilog=examples(
        "herder get clusters -A",
        "herder get machines -n fleet-default -o wide",
        "herder get secrets -n fleet-default -l app=web -o name",
        "herder get clusters meadow -n fleet-default -o yaml",
        "herder get configmaps --at 1234",
    )
)
@click.argument("resource")
@click.argument("names", nargs=-1)
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the objects. Default: the namespace of the kubeconfig."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="List objects in all namespaces.")
@click.option("-l", "--selector", metavar="SELECTOR", default="", help="Label selector, such as app=web,tier!=cache.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "yaml", "json", "name"]),
    help="Output format: wide, yaml, json or name. Default: table.",
)
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
    revision: str | None,
    kubeconfig: str | None,
) -> None:
    """List objects of the type RESOURCE, or show those named NAMES.

    RESOURCE is a plural, singular or short name, optionally with its API group: clusters.cluster.x-k8s.io.
    """
    try:
        connection = kubeconfigs.load(kubeconfig_path(kubeconfig))
        where = "" if all_namespaces else namespace or connection.namespace
        asyncio.run(_get(connection, resource, names, where, selector, output, revision))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error


async def _get(
    connection: kubeconfigs.RestConfig,
    resource: str,
    names: tuple[str, ...],
    namespace: str,
    selector: str,
    output: str | None,
    revision: str | None,
) -> None:
    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        # `clusters` means provisioning Clusters
        found = await find_resource(client, resource, prefer=PROVISIONING_CLUSTER.group)
        namespace = namespace if found.namespaced else ""
        query = _query(names, selector, revision)
        path = found.resource.path(namespace)
        whole = output in {"yaml", "json", "name"}
        shows_reasons = not whole and found.resource.group_resource == MACHINE.resource.group_resource
        if shows_reasons:
            query.items.append(("includeObject", "Object"))
        answer = await _fetch(client, path, query, "application/json" if whole else TABLE)
        if shows_reasons and answer["kind"] == "Table":
            _add_reasons(answer)
        if whole:
            _print_objects(answer, names, output or "", found)
        else:
            _print_table(answer, names, found, wide=output == "wide", namespace=namespace)
    finally:
        await client.close()


def _query(names: tuple[str, ...], selector: str, revision: str | None) -> Query:
    query = Query()
    if selector:
        query.items.append(("labelSelector", selector))
    if len(names) == 1:
        query.items.append(("fieldSelector", f"metadata.name={names[0]}"))
    if revision:
        query.items += [("resourceVersion", revision), ("resourceVersionMatch", "Exact")]
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


def _print_objects(answer: Object, names: tuple[str, ...], output: str, found: Found) -> None:
    kind = str(answer["kind"]).removesuffix("List")
    items = [{"apiVersion": answer["apiVersion"], "kind": kind, **item} for item in answer.get("items") or []]
    chosen = _only(items, names, lambda item: item["metadata"]["name"])
    if output == "name":
        for item in chosen:
            click.echo(escaped(f"{found.resource.group_resource}/{item['metadata']['name']}"))
        return
    shown: Any = chosen[0] if len(names) == 1 else {"apiVersion": "v1", "kind": "List", "items": chosen}
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)


def _print_table(answer: Object, names: tuple[str, ...], found: Found, *, wide: bool, namespace: str) -> None:
    if answer["kind"] != "Table":
        answer = _plain_table(answer)
    rows = _only(answer.get("rows") or [], names, lambda row: row["object"]["metadata"]["name"])
    columns = [
        (position, column["name"].upper())
        for position, column in enumerate(answer["columnDefinitions"])
        if wide or not column.get("priority")
    ]
    lines = [[name for _, name in columns]]
    lines += [["" if (cell := row["cells"][i]) is None else str(cell) for i, _ in columns] for row in rows]
    if found.namespaced and not namespace:
        spaces = ["NAMESPACE", *(row["object"]["metadata"].get("namespace", "") for row in rows)]
        lines = [[space, *line] for space, line in zip(spaces, lines, strict=True)]
    if not rows:
        where = f" in namespace {namespace}; use -A for all namespaces" if namespace else ""
        click.echo(escaped(f"No {found.resource.group_resource} found{where}"), err=True)
        return
    # Also headers and namespaces: the server may be a hostile cluster.
    lines = [[escaped(str(cell)) for cell in line] for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _add_reasons(answer: Object) -> None:
    """Cluster API's columns of Machines do not say what a Machine waits for."""
    answer["columnDefinitions"].append({"name": "Reason", "type": "string"})
    for row in answer.get("rows") or ():
        row["cells"].append(machine_reason(row["object"]))


def _plain_table(answer: Object) -> Object:
    """For servers without table support."""
    rows = [{"cells": [item["metadata"]["name"]], "object": item} for item in answer.get("items") or []]
    return {"columnDefinitions": [{"name": "Name"}], "rows": rows}


def _only(items: list[Any], names: tuple[str, ...], name_of: Any) -> list[Any]:
    if not names:
        return items
    missing = [name for name in names if name not in {name_of(item) for item in items}]
    if missing:
        raise click.ClickException(f"not found: {', '.join(missing)}")
    return [item for item in items if name_of(item) in names]
