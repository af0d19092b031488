"""The commands of ``imagestore`` and ``imagestore node``: each is imported when it runs, ``--help`` loads none."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Command name to module, attribute and the one line that --help shows.
Table: TypeAlias = "Mapping[str, tuple[str, str, str]]"

#: The commands under the headings of --help.
SECTIONS: Final[Mapping[str, Table]] = {
    "Images": {
        "pull": ("imagestore.cli.pull", "pull", "Fetch an image for a runtime handler or a platform."),
        "images": ("imagestore.cli.images", "images", "List images, one line for each (image, runtime handler)."),
        "inspecti": ("imagestore.cli.images", "inspecti", "Show one image: manifest, config, platform, layers."),
        "rmi": ("imagestore.cli.rmi", "rmi", "Remove images; 'gc' then frees their bytes."),
        "tag": ("imagestore.cli.names", "tag", "Give an image a further reference."),
        "untag": ("imagestore.cli.names", "untag", "Take a reference away from an image that has others."),
        "copy": ("imagestore.cli.copy", "copy", "Copy an image between registries, the store and archives."),
        "push": ("imagestore.cli.copy", "push", "Copy an image of the store into a registry."),
        "export": ("imagestore.cli.export_import", "export", "Write images into an archive."),
        "import": ("imagestore.cli.export_import", "import_", "Bring images in from an archive."),
        "unpack": ("imagestore.cli.unpack", "unpack", "Unpack an image's root filesystem into a folder."),
        "bundle": ("imagestore.cli.unpack", "bundle", "Make a bundle that runc and other OCI runtimes start."),
        "manifest": ("imagestore.cli.documents", "manifest", "Print an image's manifest or index, byte for byte."),
        "image-config": ("imagestore.cli.documents", "image_config", "Print an image's config, byte for byte."),
        "digest": ("imagestore.cli.documents", "digest", "Print the digest that a reference leads to."),
        "history": ("imagestore.cli.documents", "history", "Show the steps that an image was built in."),
        "match": ("imagestore.cli.match", "match", "Show which manifest each runtime handler would get, and why."),
    },
    "Registries": {
        "login": ("imagestore.cli.auth", "login", "Check credentials at a registry and keep them."),
        "logout": ("imagestore.cli.auth", "logout", "Forget the credentials of a registry."),
        "auth": ("imagestore.cli.auth", "auth", "Show how registries are authenticated to."),
        "hosts": ("imagestore.cli.hosts", "hosts", "Show which hosts would be asked for an image, in which order."),
        "catalog": ("imagestore.cli.listing", "catalog", "List the repositories of a registry."),
        "tags": ("imagestore.cli.listing", "tags", "List the tags of a repository in its registry."),
        "referrers": (
            "imagestore.cli.listing",
            "referrers",
            "List an image's signatures, attestations and the like.",
        ),
    },
    "Store": {
        "df": ("imagestore.cli.report", "df", "Show how much space each image takes, alone and shared."),
        "report": (
            "imagestore.cli.report",
            "report",
            "Report on handlers, matrices, images, disk; as a page of HTML too.",
        ),
        "why": ("imagestore.cli.content", "why", "Show what keeps a blob, or an image, from being collected."),
        "cat": ("imagestore.cli.content", "cat", "Write a blob of the store to standard output."),
        "gc": ("imagestore.cli.gc", "gc", "Free the content that no image and no lease needs; evict by rules."),
        "pin": ("imagestore.cli.names", "pin", "Spare images from eviction."),
        "unpin": ("imagestore.cli.names", "unpin", "Let pinned images be evicted again."),
        "leases": ("imagestore.cli.leases", "leases", "List, make, renew and delete leases."),
        "check": (
            "imagestore.cli.maintenance",
            "check",
            "Verify every blob, edge and record; rebuild a damaged database.",
        ),
        "repair": ("imagestore.cli.maintenance", "repair", "Verify, then fetch what is damaged or missing again."),
        "backup": ("imagestore.cli.maintenance", "backup", "Copy the records to a file while others go on."),
        "restore": ("imagestore.cli.maintenance", "restore", "Put a backup's records in the place of the store's."),
    },
    "Nodes and servers": {
        "serve": ("imagestore.cli.serve", "serve", "Serve the store to node software over unix sockets."),
        "mirror": ("imagestore.cli.hosts", "mirror", "Write the hosts.toml that points nodes at a mirror."),
        "node": ("imagestore.cli.commands", "node", "The node side: what a kubelet does with images and resources."),
        "fsinfo": ("imagestore.cli.server_info", "fsinfo", "Show what images use of their file system."),
        "info": ("imagestore.cli.server_info", "info", "Show whether a CRI server is ready, and its handlers."),
        "version": ("imagestore.cli.server_info", "version", "Show versions, a CRI server's too."),
    },
    "Configuration and tests": {
        "config": ("imagestore.cli.config", "config", "Check, print or start a configuration."),
        "completion": ("imagestore.cli.completion", "completion", "Print what makes a shell complete commands."),
        "tape": ("imagestore.cli.tape", "tape", "Check, show and serve recorded registries."),
        "record": ("imagestore.cli.record", "record", "Run a command and record what it asks of registries."),
    },
}

#: Those of ``imagestore node``.
NODE_COMMANDS: Final[Table] = {
    "ensure": ("imagestore.cli.node.ensure", "ensure", "Make sure that an image is there and a pod may use it."),
    "gc": ("imagestore.cli.node.gc", "gc", "Collect images by age and space, by (image, runtime handler)."),
    "edged-config": ("imagestore.cli.node.settings", "edged_config", "Show what a KubeEdge configuration means."),
    "resources": (
        "imagestore.cli.node.resources",
        "resources",
        "Show what requests and limits become, number by number.",
    ),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command runs; its help lists the tables' commands."""

    def __init__(self, *, sections: Mapping[str, Table], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        self.table = {name: entry for table in sections.values() for name, entry in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the tables."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = entry
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error for an unknown name suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = args[0]
            if name in self.table or name.startswith("-"):
                raise
            near = " or ".join(map(repr, difflib.get_close_matches(name, self.table)))
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list, without importing a command."""
        width = max(map(len, self.table))
        for heading, table in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, _, line) in table.items()])


@click.group(cls=LazyGroup, sections={"Commands": NODE_COMMANDS})
def node() -> None:
    """The node side: what a kubelet does with images and resources."""
