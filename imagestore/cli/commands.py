"""The commands of ``imagestore`` and ``imagestore node``: each is imported when it runs, ``--help`` loads none."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Command name to module (below imagestore.cli), attribute and the one line that --help shows.
Table: TypeAlias = "Mapping[str, tuple[str, str, str]]"

#: The commands under the headings of --help.
SECTIONS: Final[Mapping[str, Table]] = {
    "Images": {
        "pull": ("pull", "pull", "Fetch an image for a runtime handler or a platform."),
        "images": ("images", "images", "List images, one line for each (image, runtime handler)."),
        "inspecti": ("images", "inspecti", "Show one image: manifest, config, platform, layers."),
        "rmi": ("rmi", "rmi", "Remove images; 'gc' then frees their bytes."),
        "tag": ("names", "tag", "Add a reference to an image."),
        "untag": ("names", "untag", "Remove a reference from an image that has others."),
        "copy": ("copy", "copy", "Copy an image between registries, the store and archives."),
        "push": ("copy", "push", "Copy an image of the store into a registry."),
        "sync": ("sync", "sync", "Copy what a file names from registries into others."),
        "export": ("export_import", "export", "Write images into an archive."),
        "import": ("export_import", "import_", "Import images from an archive."),
        "unpack": ("unpack", "unpack", "Unpack an image's root filesystem into a folder."),
        "bundle": ("unpack", "bundle", "Make a bundle that runc and other OCI runtimes start."),
        "manifest": ("documents", "manifest", "Print an image's manifest or index, byte for byte."),
        "image-config": ("documents", "image_config", "Print an image's config, byte for byte."),
        "digest": ("documents", "digest", "Print the digest that a reference leads to."),
        "history": ("documents", "history", "Show the steps in which an image was built."),
        "match": ("match", "match", "Show which manifest each runtime handler would get, and why."),
    },
    "Registries": {
        "login": ("auth", "login", "Check credentials at a registry and store them."),
        "logout": ("auth", "logout", "Remove the stored credentials of a registry."),
        "auth": ("auth", "auth", "Show which credentials registries get."),
        "hosts": ("hosts", "hosts", "Show which hosts would be asked for an image, in which order."),
        "catalog": ("listing", "catalog", "List the repositories of a registry."),
        "tags": ("listing", "tags", "List the tags of a repository in its registry."),
        "referrers": ("listing", "referrers", "List an image's signatures, attestations and the like."),
        "inspect": ("inspect", "inspect", "Show a registry's image: platforms, config, tags, referrers."),
        "delete": ("delete", "delete", "Delete a tag, or a manifest with its tags, in a registry."),
    },
    "Store": {
        "df": ("report", "df", "Show how much space each image takes, alone and shared."),
        "report": ("report", "report", "Report on handlers, matrices, images, disk; as a page of HTML too."),
        "why": ("content", "why", "Show what keeps a blob, or an image, from being collected."),
        "cat": ("content", "cat", "Write a blob of the store to standard output."),
        "gc": ("gc", "gc", "Free the content that no image and no lease needs; evict by rules."),
        "pin": ("names", "pin", "Protect images from eviction."),
        "unpin": ("names", "unpin", "Let pinned images be evicted again."),
        "leases": ("leases", "leases", "List, make, renew and delete leases."),
        "check": ("maintenance", "check", "Verify every blob, edge and record; rebuild a damaged database."),
        "repair": ("maintenance", "repair", "Verify, then fetch damaged or missing content again."),
        "backup": ("maintenance", "backup", "Copy the records to a file while the store is in use."),
        "restore": ("maintenance", "restore", "Replace the store's records with a backup's."),
        "finish-upgrade": ("maintenance", "finish_upgrade", "Refuse older versions at a shared store from now on."),
    },
    "Nodes and servers": {
        "serve": ("serve", "serve", "Serve the store to node software over unix sockets."),
        "mirror": ("hosts", "mirror", "Write the hosts.toml that points nodes at a mirror."),
        "publish": ("publish", "publish", "Publish images into containerd, or show how that stands."),
        "unpublish": ("publish", "unpublish", "Take published images away from containerd."),
        "node": ("commands", "node", "The node side: what a kubelet does with images and resources."),
        "fsinfo": ("server_info", "fsinfo", "Show what images use of their file system."),
        "info": ("server_info", "info", "Show whether a CRI server, or containerd, is ready, and handlers."),
        "version": ("server_info", "version", "Show versions, a CRI server's too."),
    },
    "Configuration and tests": {
        "config": ("config", "config", "Check or print a configuration, or write a new one."),
        "completion": ("completion", "completion", "Print the completion script of a shell."),
        "tape": ("tape", "tape", "Check, show and serve recorded registries."),
        "record": ("record", "record", "Run a command and record the registries' answers."),
    },
}

#: Those of ``imagestore node``.
NODE_COMMANDS: Final[Table] = {
    "ensure": ("node.ensure", "ensure", "Make sure that an image is there and a pod may use it."),
    "gc": ("node.gc", "gc", "Collect images by age and space, by (image, runtime handler)."),
    "edged-config": ("node.settings", "edged_config", "Show what a KubeEdge configuration means."),
    "resources": ("node.resources", "resources", "Show what requests and limits become, number by number."),
}


#: What other tools call these commands.
MEANT: Final = {
    **dict.fromkeys(("list", "ls", "ps"), "images"),
    **dict.fromkeys(("save", "archive"), "export"),
    "load": "import",
    **dict.fromkeys(("get", "fetch", "download"), "pull"),
    **dict.fromkeys(("rm", "remove"), "rmi"),
    **dict.fromkeys(("prune", "clean"), "gc"),
    **dict.fromkeys(("repositories", "repos", "search"), "catalog"),
    **dict.fromkeys(("run", "create"), "bundle"),
    "mount": "unpack",
    "blob": "cat",
    "stats": "df",
    "daemon": "serve",
    "fsck": "check",
    "upload": "push",
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
        command: click.Command = getattr(importlib.import_module(f"imagestore.cli.{module}"), attribute)
        if sys.flags.optimize > 1:
            restore_help(command)
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
            import difflib

            meant = MEANT.get(name, "")
            found = [meant] if meant in self.table else difflib.get_close_matches(name, self.table)
            near = " or ".join(map(repr, found))
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list, without importing a command."""
        width = max(map(len, self.table))
        for heading, table in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, _, line) in table.items()])


def restore_help(command: click.Command) -> None:
    """Read a command's help from its source: it is the function's docstring, which ``python -OO`` takes away."""
    if command.help is None and command.callback is not None:
        try:
            source = inspect.getsource(inspect.unwrap(command.callback))
        except OSError:
            return  # compiled modules alone were installed
        (function,) = ast.parse(textwrap.dedent(source)).body
        if isinstance(function, ast.FunctionDef):
            command.help = ast.get_docstring(function)
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        restore_help(each)


@click.group(cls=LazyGroup, sections={"Commands": NODE_COMMANDS})
def node() -> None:
    """The node side: what a kubelet does with images and resources."""
