"""`tidewire namespaces`: list, create and delete namespaces, and say how long their topics keep messages.

A namespace need not be created: its first topic does that. A created one is there while it is empty.
"""

from typing import Annotated, Final

import typer

from tidewire.cli.admin.confirming import Yes, confirm
from tidewire.cli.admin.retention import Remove, Size, Time, change_of, sentence
from tidewire.cli.admin.topic_lists import namespace_path, tenant_path
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import one_sentence
from tidewire.cli.output import Json, note, print_json, tell

app: Final = typer.Typer(
    help="List, create and delete namespaces, and set what their topics keep.", no_args_is_help=True
)

COMMAND: Final = "tidewire namespaces"
_TENANTS: Final = "/admin/v2/tenants"
_NAMESPACES: Final = "/admin/v2/namespaces"

Namespace = Annotated[str, typer.Argument(help="TENANT/NAMESPACE", show_default=False)]


@app.command("list")
def names(
    tenant: Annotated[str | None, typer.Argument(help="Only those of this tenant.", show_default=False)] = None,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """List the namespaces that were created or have topics, one a line."""
    with one_sentence(COMMAND):
        brokers = Brokers(*addresses(data_dir, http))
        tenants = brokers.ask("GET", _TENANTS) if tenant is None else [tenant]
        found = [name for one in tenants for name in brokers.ask("GET", f"{_NAMESPACES}/{tenant_path(one)}")]
        if as_json:
            print_json([{"namespace": name} for name in found])
            return
        for name in found:
            typer.echo(name)
        if not found:
            assert tenant is not None, "public/default is always there"
            note(
                COMMAND,
                f"Tenant {tenant} has no namespaces. Create one with `tidewire namespaces create {tenant}/NAME`.",
            )


@app.command("create")
def create(
    namespace: Namespace, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Create a namespace, and its tenant if there is none."""
    with one_sentence(COMMAND):
        path = namespace_path(namespace)
        brokers = Brokers(*addresses(data_dir, http))
        tenant = namespace.partition("/")[0]
        if tenant not in brokers.ask("GET", _TENANTS):
            brokers.ask("PUT", f"{_TENANTS}/{tenant_path(tenant)}")
        brokers.ask("PUT", f"{_NAMESPACES}/{path}")
        tell(f"created {namespace}", as_json, namespace=namespace, created=True)


@app.command("delete")
def delete(
    namespace: Namespace,
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Delete a namespace that has no topics, with its retention policy. Its tenant stays."""
    with one_sentence(COMMAND):
        path = namespace_path(namespace)
        confirm(f"The retention policy of {namespace} will be lost", yes)
        Brokers(*addresses(data_dir, http)).ask("DELETE", f"{_NAMESPACES}/{path}")
        tell(f"deleted {namespace}", as_json, namespace=namespace, deleted=True)


@app.command("retention")
def retention(
    namespace: Namespace,
    time: Time = None,
    size: Size = None,
    remove: Remove = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show how long a namespace's topics keep acknowledged messages, or change it by --time, --size or --remove.

    It applies to each segment or partition of topics that have no policy of their own. Without any policy, the broker's
    setting applies. If only one of --time and --size is given, the other one is infinite.
    """
    with one_sentence(COMMAND):
        resource = f"{_NAMESPACES}/{namespace_path(namespace)}/retention"
        own = change_of(Brokers(*addresses(data_dir, http)), resource, time, size, remove=remove)
        minutes, megabytes = (own["retentionTimeInMinutes"], own["retentionSizeInMB"]) if own else (None, None)
        tell(
            f"{namespace} {sentence(own) if own else 'has no policy. The setting of the broker applies'}",
            as_json,
            namespace=namespace,
            minutes=minutes,
            megabytes=megabytes,
            isOwn=own is not None,
        )
