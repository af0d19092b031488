"""The part of the metadata port that is about leases: what keeps content, and images, while work is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from imagestore.metadata.namespace_api import HOME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from imagestore.metadata.records import Lease
    from imagestore.oci.digest import Digest


class LeaseStore(Protocol):
    """Leases by id, with what they list; containerd's, with its labels for expiry and flatness."""

    def create_lease(
        self,
        lease_id: str,
        *,
        lifetime_seconds: float,
        labels: Mapping[str, str] | None = None,
        namespace: str = HOME,
        content: Collection[Digest] = (),
    ) -> Lease:
        """Make a lease.

        Args:
            lease_id: its name.
            lifetime_seconds: from now; infinite for a lease that only its deletion ends.
            labels: gc.flat and gc.expire mean what they mean in containerd; gc.expire goes before the lifetime.
            namespace: whose it is; the id is then lease_key()'s.
            content: what it lists from the start.

        Raises:
            AlreadyExistsError: the id is taken.
            InvalidInputError: the id is empty, or a label too long.
        """

    def renew_lease(self, lease_id: str, *, lifetime_seconds: float) -> None:
        """Move a lease's end to now plus its lifetime; a gc.expire label on it goes.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def lease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Put digests under a lease, before their presence is looked at.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def delete_lease(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Release a lease; say whether it was there.

        Args:
            lease_id: which.
            is_of_work: its own work gives it up, which a full disk's reserve isn't kept for.
        """

    def lease(self, lease_id: str) -> Lease | None:
        """One lease, also when it expired; None when there is none."""

    def leases(self, *, namespace: str | None = None) -> Iterator[Lease]:
        """Every lease, or those of a namespace; expired ones too."""

    def leased_content(self, lease_id: str) -> tuple[Digest, ...]:
        """What a lease lists.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def unlease_content(self, lease_id: str, digests: Collection[Digest]) -> None:
        """Take digests off a lease; those it doesn't list are no error.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def lease_image(self, lease_id: str, name: str, handler: str) -> None:
        """Put the name of an image under a lease, which needs no image of that name.

        As long as the lease lasts, neither gc.expire nor a policy takes the image. A removal does, as in containerd.

        Args:
            lease_id: which.
            name: of an image in the lease's namespace.
            handler: whose record a name without a handler means, in the store's own namespace.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def unlease_image(self, lease_id: str, name: str) -> None:
        """Take the name of an image off a lease; one that it doesn't list is no error.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def leased_images(self, lease_id: str) -> tuple[str, ...]:
        """The names of images that a lease lists.

        Raises:
            LeaseNotFoundError: it is gone.
        """

    def leased_records(self) -> frozenset[str]:
        """What unexpired leases of the store's own namespace name, as ``reference@handler`` each."""
