"""``imagestore login``, ``logout`` and ``auth explain``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from imagestore.cli import options, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import output_option
from imagestore.errors import ImageStoreError, InvalidInputError, InvalidReferenceError

if TYPE_CHECKING:
    from imagestore.registry.credentials.lookup import Explanation, UserEnvironment
    from imagestore.registry.credentials.model import Credential
    from imagestore.util.cancel import CancelToken

_auth_file_option = click.option(
    "--auth-file",
    metavar="FILE",
    default="",
    help="Only this file, in the containers tools' auth.json form. Default: REGISTRY_AUTH_FILE, else Docker's config.",
)


@click.command()
@click.argument("host", default="docker.io")
@click.option("-u", "--username", metavar="USER", help="User name; asked for on a terminal.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input; else it is asked for.")
@click.option("--no-check", is_flag=True, help="Store without trying the credentials at the registry.")
@_auth_file_option
@pass_app
def login(app: App, host: str, username: str | None, password_stdin: bool, no_check: bool, auth_file: str) -> None:
    """Check credentials at a registry and store them.

    HOST is docker.io by default; its hosts.toml says how it is reached, as in a pull. The password is never an
    argument, where every user of the machine could read it. With a credential helper configured for the host, the
    helper keeps it.
    """
    from imagestore.registry.credentials import login as logins
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.lookup import UserEnvironment
    from imagestore.util.cancel import CancelToken

    registry = _registry(host)
    credential = _ask(registry, username, from_stdin=password_stdin)
    user, cancel = UserEnvironment.of_process(), CancelToken()
    place = logins.login_file_for(user, auth_file=auth_file)
    if not no_check:
        _check(app, registry, credential, cancel)
    kept = logins.store_login(place, registry, credential, HelperPool(user.variables), cancel=cancel)
    print(render.printable(f"{registry}: login {'stored' if no_check else 'succeeded'}; kept in {kept}"))
    _note_others(user, registry, auth_file, cancel, expected=kept)


@click.command()
@click.argument("host", default="docker.io")
@_auth_file_option
def logout(host: str, auth_file: str) -> None:
    """Remove the credentials that login stored for a registry.

    HOST is docker.io by default. Entries for namespaces below the host stay.
    """
    from imagestore.registry.credentials import login as logins
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.lookup import UserEnvironment
    from imagestore.util.cancel import CancelToken

    registry = _registry(host)
    user, cancel = UserEnvironment.of_process(), CancelToken()
    place = logins.login_file_for(user, auth_file=auth_file)
    removed = logins.remove_login(place, registry, HelperPool(user.variables), cancel=cancel)
    for where in removed:
        print(render.printable(f"{registry}: removed from {where}"))
    if not removed:
        print(render.printable(f"{registry}: no login in {place.path}"))
    _note_others(user, registry, auth_file, cancel, expected="")


@click.group()
def auth() -> None:
    """Show which credentials registries get."""


@auth.command()
@click.argument("reference")
@_auth_file_option
@output_option
def explain(reference: str, auth_file: str, output: str) -> None:
    """Show which credentials a pull of REFERENCE would use, and why not others; never a secret.

    Credential helpers are asked as in a pull, up to the place that is used.
    """
    from imagestore.oci.reference import Reference
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.util.cancel import CancelToken

    parsed = Reference.parse(reference)
    explanation = CredentialResolver.standard(auth_file=auth_file).explain(parsed, cancel=CancelToken())
    if output == "json":
        render.dump_json(_document(str(parsed), explanation))
    else:
        rows = [(step.outcome.value, step.location, step.member, step.reason) for step in explanation.steps]
        render.table(("OUTCOME", "PLACE", "MEMBER", "REASON"), rows)
        if explanation.failure is None:
            place = explanation.provenance
            used = f"credentials from {place}" if place else "anonymous access; no place has credentials"
            print(f"\n{parsed.familiar}: {render.printable(used)}")
    if explanation.failure is not None:
        raise explanation.failure


def _document(reference: str, explanation: Explanation) -> dict[str, object]:
    return {
        "reference": reference,
        "host": explanation.target.host,
        "repository": explanation.target.repository,
        "credentials": explanation.provenance or None,
        "failure": str(explanation.failure) if explanation.failure is not None else None,
        "steps": [
            {"outcome": step.outcome.value, "place": step.location, "member": step.member, "reason": step.reason}
            for step in explanation.steps
        ],
    }


def _registry(text: str) -> str:
    """The registry's name in references; a pasted URL is cut to its host."""
    from imagestore.oci.reference import Reference
    from imagestore.registry.credentials.sources import host_of

    if "@" in text:
        # Not shown: what is in front of it may be a password.
        raise InvalidInputError("registry: expected a host name without a login; leave out everything up to '@'")
    host = host_of(text.strip())
    name, colon, port = host.rpartition(":")
    if colon and not name.startswith("[") and not port.isdecimal():
        raise InvalidInputError("registry: expected a host name; what is behind ':' is no port, and not shown")
    try:
        parsed = Reference.parse(f"{host}/image")
    except InvalidReferenceError as error:
        raise InvalidInputError(f"registry {text!r}: expected a host name: {error.reason}") from error
    if parsed.path not in ("image", "library/image"):
        raise InvalidInputError(
            f"registry {text!r}: expected a host with a dot or a port, or localhost",
            hint=f"write {host}:443, if that host is meant",
        )
    return parsed.host


def _ask(registry: str, username: str | None, *, from_stdin: bool) -> Credential:
    from imagestore.registry.credentials.model import Credential, checked
    from imagestore.util.secret import Secret

    if from_stdin:
        if not username:
            raise click.UsageError("--password-stdin needs --username")
        password = options.read_line("password")
    elif sys.stdin.isatty():
        username = username or click.prompt("User name", err=True)
        password = click.prompt(f"Password for {username} at {registry}", hide_input=True, err=True)
    else:
        raise click.UsageError("standard input is no terminal; give --username and --password-stdin")
    if not password:
        raise InvalidInputError("password: expected one, it is empty")
    return checked(Credential(str(username), Secret(password)), "login")


def _check(app: App, registry: str, credential: Credential, cancel: CancelToken) -> None:
    from imagestore.config.hosts import reader_for
    from imagestore.registry.credentials.login import check_login
    from imagestore.registry.endpoints import endpoints_from
    from imagestore.registry.policy import auth_policy
    from imagestore.registry.transport.http import HttpSender

    # The registry itself, which comes last: mirrors don't check its logins.
    endpoint = endpoints_from(registry, reader_for(app.config)(registry))[-1]
    # The login is the host's own, also if pulls send it another registry's.
    policy = replace(auth_policy(app.config.settings.registry), credential_hosts={})
    sender = HttpSender()
    try:
        trusted = policy.token_hosts(endpoint.origin.host)
        bound = sender.bound(endpoint.origin, endpoint.connection, trusted_hosts=trusted)
        check_login(bound, endpoint, credential, policy=policy, cancel=cancel)
    finally:
        sender.close()


def _note_others(user: UserEnvironment, registry: str, auth_file: str, cancel: CancelToken, *, expected: str) -> None:
    """Note if a pull would use other credentials than those just stored, or still some after a logout."""
    from imagestore.registry.credentials.lookup import CredentialResolver
    from imagestore.registry.credentials.model import Target

    try:
        found = CredentialResolver.standard(auth_file=auth_file, user=user).lookup(Target(registry), cancel=cancel)
    except ImageStoreError as error:
        print(render.printable(f"note: a pull would fail to find credentials: {error}"), file=sys.stderr)
        return
    if found is not None and found.provenance != expected:
        print(render.printable(f"note: pulls use the credentials in {found.provenance}"), file=sys.stderr)
