"""``imagestore``: global options and lazily loaded commands."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import imagestore.errors as errors
from imagestore._version import __version__
from imagestore.cli import signals
from imagestore.cli.app import App, RemoteOptions
from imagestore.cli.commands import SECTIONS, LazyGroup, restore_help
from imagestore.cli.exit_codes import MEANINGS, ExitStatus, fail, note, report
from imagestore.cli.options import GivenPath, StoreRoot
from imagestore.cli.render import StandardError
from imagestore.util.logins import reference_without_login, without_logins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO


#: The commands that --endpoint is for.
REMOTE_COMMANDS: Final = frozenset({"images", "pull", "inspecti", "rmi", "fsinfo", "info", "version", "node"})

#: Folders of content in a root, ours and containerd's: users give the root instead.
_CONTENT: Final = ("content", "io.containerd.content.v1.content")

_STATUS_TEXT: Final = "\n".join(
    ["\b", "Exit statuses:", *(f"  {status.value:>3}  {meaning}" for status, meaning in MEANINGS.items())]
)


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    epilog=_STATUS_TEXT,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--root",
    type=StoreRoot(),
    envvar="IMAGESTORE_ROOT",
    show_envvar=True,
    help="The store's folder, or postgresql://USER@HOST/DATABASE for one that machines share. "
    "Default: /var/lib/imagestore for root, else imagestore in the user's data folder.",
)
@click.option(
    "--content",
    metavar="s3://BUCKET/PREFIX",
    default="",
    envvar="IMAGESTORE_CONTENT",
    show_envvar=True,
    help="The bucket with a shared store's content; AWS_ENDPOINT_URL, AWS_REGION and AWS's keys say how it is reached.",
)
@click.option(
    "--scope",
    metavar="NAME",
    default="",
    envvar="IMAGESTORE_SCOPE",
    show_envvar=True,
    help="Whose images of a shared store are meant. Default: default.",
)
@click.option(
    "--config",
    "config_path",
    type=GivenPath(path_type=Path),
    envvar="IMAGESTORE_CONFIG",
    show_envvar=True,
    help="containerd-style configuration file. Default: the user's imagestore/config.toml (not for root), "
    "then /etc/imagestore/config.toml, then built-in defaults with one runtime handler.",
)
@click.option(
    "--source",
    "sources",
    type=GivenPath(file_okay=False, path_type=Path),
    multiple=True,
    envvar="IMAGESTORE_SOURCES",
    show_envvar=True,
    help="Folder with blobs/ (containerd's content, an OCI layout) to adopt content from; only read. May be repeated.",
)
@click.option(
    "--endpoint",
    metavar="ENDPOINT",
    help="Ask this CRI server (unix:///path) instead of a local store; 'crictl' means the one crictl is configured for "
    "(CONTAINER_RUNTIME_ENDPOINT, IMAGE_SERVICE_ENDPOINT, /etc/crictl.yaml). "
    "For images, pull, inspecti, rmi, fsinfo, info, version and node.",
)
@click.option("--image-endpoint", metavar="ENDPOINT", help="The server's image service, where it is another one.")
@click.option(
    "--crictl-config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="crictl's configuration file, for '--endpoint crictl'.",
)
@click.option("--debug", is_flag=True, help="Log what is done to standard error; secrets are left out.")
@click.version_option(__version__, prog_name="imagestore", message="%(prog)s %(version)s")
@click.pass_context
def cli(
    ctx: click.Context,
    root: Path | str | None,
    content: str,
    scope: str,
    config_path: Path | None,
    sources: tuple[Path, ...],
    endpoint: str | None,
    image_endpoint: str | None,
    crictl_config: Path | None,
    debug: bool,
) -> None:
    """Keep container images by (reference, runtime handler), so that every sandbox gets the manifest it can run."""
    if debug:
        logging.basicConfig(level=logging.DEBUG, stream=StandardError(), format="%(asctime)s %(name)s %(message)s")
        for noisy in ("httpx", "httpcore"):
            # Their debug lines show whole header lists.
            logging.getLogger(noisy).setLevel(logging.WARNING)
    else:
        logging.basicConfig(stream=StandardError(), format="%(message)s")
    for source in sources:
        # Not Path.is_dir(), which raises where the folder may not be looked into.
        if not os.path.isdir(source / "blobs"):
            inside = (source / name for name in _CONTENT if os.path.isdir(source / name / "blobs"))
            meant = "".join(f"; {each} has one" for each in inside)
            note(f"--source {source}: has no folder blobs, so nothing comes from there{meant}")
    app = App(root, config_path, sources, content=content, scope=scope)
    app.remote = _remote(ctx, endpoint, image_endpoint, crictl_config)
    ctx.obj = app
    ctx.call_on_close(app.close)


def _remote(
    ctx: click.Context, endpoint: str | None, image_endpoint: str | None, crictl_config: Path | None
) -> RemoteOptions | None:
    """The CRI server that the options name; None for the local store."""
    if endpoint is None:
        for name, value in (("--image-endpoint", image_endpoint), ("--crictl-config", crictl_config)):
            if value is not None:
                raise click.UsageError(f"{name} needs --endpoint")
        return None
    if ctx.invoked_subcommand not in REMOTE_COMMANDS:
        raise click.UsageError(f"'{ctx.invoked_subcommand}' works on a local store, not with --endpoint")
    for parameter in ("root", "content", "scope", "config_path", "sources"):
        if ctx.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE:
            option = {"config_path": "--config", "sources": "--source"}.get(parameter, f"--{parameter}")
            raise click.UsageError(f"{option} is for a local store, and --endpoint asks a server")
    if crictl_config is not None and endpoint != "crictl":
        raise click.UsageError("--crictl-config needs '--endpoint crictl'")

    return RemoteOptions(endpoint, image_endpoint or "", crictl_config)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    is_json = _wants_json(words)
    return run(lambda: _invoke(words, is_json=is_json), words, is_json=is_json)


def run(work: Callable[[], int], words: Sequence[str] = (), *, is_json: bool = False) -> int:
    """Run a command and return its exit status: the only place where errors become exit statuses."""
    _prepare_streams()
    signals.raise_on_signals()
    try:
        status = work()
        sys.stdout.flush()
    except errors.ImageStoreError as error:
        status = report(error, is_json=is_json)
    except KeyboardInterrupt:
        status = _interrupted(is_json=is_json)
    except RuntimeError as error:
        # Python 3.11 wraps an interrupt that arrives while a class is defined, for example during an import.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        status = _interrupted(is_json=is_json)
    except BrokenPipeError:
        status = ExitStatus.FAILURE
    except OSError as error:
        status = fail(f"{error.filename or 'output'}: {error.strerror}", ExitStatus.FAILURE, is_json=is_json)
    except UnicodeEncodeError as error:
        # Names of files may be any bytes; other arguments are written where only UTF-8 is possible.
        odd = error.object[error.start]
        word = next((word for word in words if odd in word), None)
        if word is None:
            raise
        category = errors.Category.INVALID_ARGUMENT
        status = fail(f"argument '{word}': expected UTF-8", ExitStatus.USAGE, category=category, is_json=is_json)
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    return status


def _wants_json(words: Sequence[str]) -> bool:
    """Whether the command's output is JSON, also where the words can't be read: its errors are JSON then."""
    before = words[: words.index("--")] if "--" in words else words
    options = [f"{word}{value}" for word, value in itertools.pairwise(before)]
    return not {"-ojson", "--outputjson", "--output=json"}.isdisjoint([*before, *options])


def _invoke(words: list[str], *, is_json: bool) -> int:
    if sys.flags.optimize > 1:
        restore_help(cli)
    try:
        return int(cli.main(args=words, prog_name="imagestore", standalone_mode=False) or ExitStatus.OK)
    except click.exceptions.Exit as request:
        return request.exit_code
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _with_place(error)
        if is_json:
            message = _without_logins(error.format_message(), words)
            return fail(message, ExitStatus.USAGE, category=errors.Category.INVALID_ARGUMENT, is_json=True)
        shown = io.StringIO()
        error.show(shown)
        with contextlib.suppress(OSError):  # the exit status remains
            sys.stderr.write(_without_logins(shown.getvalue(), words))
        return error.exit_code
    except click.Abort:
        return _interrupted(is_json=is_json)


def _without_logins(message: str, words: Sequence[str]) -> str:
    """click's message without the logins of the words that it quotes."""
    for word in words:
        message = message.replace(word, reference_without_login(word)) if "@" in word else message
    return without_logins(message)


def _with_place(error: click.NoSuchOption) -> click.UsageError:
    """For a global option after the command, an error that says where it goes; else the same error."""
    if error.ctx is None or not any(error.option_name in option.opts for option in cli.params):
        return error
    command = error.ctx.command_path.partition(" ")[2]
    where = f"It goes before the command: imagestore {error.option_name} ... {command}"
    return click.UsageError(f"{error.message} {where}", error.ctx)


def _interrupted(*, is_json: bool) -> ExitStatus:
    return fail("interrupted", ExitStatus.INTERRUPTED, category=errors.Category.CANCELLED, is_json=is_json)


def _prepare_streams() -> None:
    """A service may start without standard streams, and a terminal may know only ASCII."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as the process
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush(stream: TextIO) -> None:
    """Flush; what can't be written is dropped, or the interpreter would fail on it at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
