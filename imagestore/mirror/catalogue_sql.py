"""Tables and statements of a mirror's catalogue, in SQL that SQLite and PostgreSQL share.

Parameters are named and written ``:name``. Statements have no other colon and no percent sign, so they
can be rewritten for a driver that wants another style.
"""

from __future__ import annotations

from typing import Final

#: Of the tables; another number for every change of them.
VERSION: Final = 4
#: To be formatted with types: ``text`` (compared by bytes), ``integer`` (of 64 bits), ``real`` (of 64 bits); and with
#: ``options`` behind a table.
TABLES: Final = (
    """CREATE TABLE mirror_tag (
        name {text} NOT NULL,
        tag {text} NOT NULL,
        digest {text} NOT NULL,
        checked_at {real} NOT NULL,
        PRIMARY KEY (name, tag)
    ) {options}""",
    """CREATE TABLE mirror_document (
        name {text} NOT NULL,
        digest {text} NOT NULL,
        upstream {text} NOT NULL,
        media_type {text} NOT NULL,
        size {integer} NOT NULL,
        served_at {real} NOT NULL,
        PRIMARY KEY (name, digest)
    ) {options}""",
    "CREATE INDEX mirror_document_by_use ON mirror_document (upstream, served_at)",
    "CREATE INDEX mirror_document_by_digest ON mirror_document (digest, upstream)",
    # Anyone can push a document that names content of others: is_confirmed, 0 or 1, says that the repository's registry
    # has served the content, or said that it has it. A row of mirror_document says so, too.
    """CREATE TABLE mirror_part (
        name {text} NOT NULL,
        parent {text} NOT NULL,
        digest {text} NOT NULL,
        media_type {text} NOT NULL,
        size {integer} NOT NULL,
        is_confirmed {integer} NOT NULL,
        PRIMARY KEY (name, digest, parent),
        FOREIGN KEY (name, parent) REFERENCES mirror_document (name, digest) ON DELETE CASCADE
    ) {options}""",
    "CREATE INDEX mirror_part_by_parent ON mirror_part (name, parent)",
    "CREATE INDEX mirror_part_by_digest ON mirror_part (digest, name)",
    # Content that is in the store, verified, and counts for the upstream.
    """CREATE TABLE mirror_blob (
        upstream {text} NOT NULL,
        digest {text} NOT NULL,
        size {integer} NOT NULL,
        mark {integer} NOT NULL,
        PRIMARY KEY (upstream, digest)
    ) {options}""",
    "CREATE INDEX mirror_blob_by_digest ON mirror_blob (digest)",
    """CREATE TABLE mirror_reservation (
        id {text} NOT NULL,
        owner {text} NOT NULL,
        upstream {text} NOT NULL,
        digest {text} NOT NULL,
        size {integer} NOT NULL,
        ends_at {real} NOT NULL,
        PRIMARY KEY (id)
    ) {options}""",
    "CREATE INDEX mirror_reservation_by_digest ON mirror_reservation (upstream, digest)",
    """CREATE TABLE mirror_leaving (
        upstream {text} NOT NULL,
        digest {text} NOT NULL,
        mark {integer} NOT NULL,
        PRIMARY KEY (upstream, digest)
    ) {options}""",
)

TAG: Final = (
    "SELECT d.media_type, d.digest, d.size, t.checked_at FROM mirror_tag t"
    " JOIN mirror_document d ON d.name = t.name AND d.digest = t.digest WHERE t.name = :name AND t.tag = :tag"
)
DOCUMENT: Final = "SELECT media_type, digest, size FROM mirror_document WHERE name = :name AND digest = :digest"
TAGS: Final = "SELECT tag FROM mirror_tag WHERE name = :name ORDER BY tag"
NAMES: Final = "SELECT DISTINCT name FROM mirror_document WHERE upstream = :upstream ORDER BY name"
MARKS: Final = "SELECT upstream, mark FROM mirror_blob WHERE digest = :digest"
#: With the size of content in the store, else the one that a document states.
KNOWN: Final = (
    "SELECT k.media_type, k.digest, coalesce(b.size, k.size), k.is_confirmed,"
    " CASE WHEN b.digest IS NULL THEN 0 ELSE 1 END FROM ("
    " SELECT media_type, digest, size, is_confirmed, 0 AS turn FROM mirror_part"
    " WHERE name = :name AND digest = :digest UNION ALL"
    " SELECT media_type, digest, size, 1 AS is_confirmed, 1 AS turn FROM mirror_document"
    " WHERE name = :name AND digest = :digest"
    ") AS k LEFT JOIN mirror_blob b ON b.upstream = :upstream AND b.digest = k.digest"
    " ORDER BY k.turn, k.size, k.media_type LIMIT 1"
)
PUT_DOCUMENT: Final = (
    "INSERT INTO mirror_document (name, digest, upstream, media_type, size, served_at)"
    " VALUES (:name, :digest, :upstream, :media_type, :size, :now)"
    " ON CONFLICT (name, digest) DO UPDATE SET served_at = excluded.served_at, size = excluded.size, media_type ="
    " CASE WHEN excluded.media_type = :octets THEN mirror_document.media_type ELSE excluded.media_type END"
)
PUT_PART: Final = (
    "INSERT INTO mirror_part (name, parent, digest, media_type, size, is_confirmed)"
    " VALUES (:name, :parent, :digest, :media_type, :size, 0) ON CONFLICT (name, digest, parent) DO NOTHING"
)
#: Of a document that was put: those whose content the repository is known to have. So all rows of a repository that
#: name the same content agree.
CONFIRM_PARTS: Final = (
    "UPDATE mirror_part SET is_confirmed = 1 WHERE name = :name AND parent = :parent AND is_confirmed = 0 AND ("
    " EXISTS (SELECT 1 FROM mirror_document d WHERE d.name = :name AND d.digest = mirror_part.digest)"
    " OR EXISTS (SELECT 1 FROM mirror_part o"
    " WHERE o.name = :name AND o.digest = mirror_part.digest AND o.is_confirmed = 1))"
)
CONFIRM: Final = "UPDATE mirror_part SET is_confirmed = 1 WHERE name = :name AND digest = :digest"
PUT_BLOB: Final = (
    "INSERT INTO mirror_blob (upstream, digest, size, mark) VALUES (:upstream, :digest, :size, :mark)"
    " ON CONFLICT (upstream, digest) DO UPDATE SET size = excluded.size, mark = excluded.mark"
)
PUT_TAG: Final = (
    "INSERT INTO mirror_tag (name, tag, digest, checked_at) VALUES (:name, :tag, :digest, :checked_at)"
    " ON CONFLICT (name, tag) DO UPDATE SET digest = excluded.digest, checked_at = excluded.checked_at"
)
NOTE_SERVED: Final = (
    "UPDATE mirror_document SET served_at = :now WHERE name = :name AND digest IN (SELECT CAST(:digest AS TEXT) UNION"
    " SELECT parent FROM mirror_part WHERE name = :name AND digest = :digest)"
)
USED: Final = (
    "SELECT u.upstream, CAST(coalesce(sum(u.size), 0) AS BIGINT) FROM ("
    " SELECT upstream, size FROM mirror_blob UNION ALL"
    " SELECT upstream, 0 AS size FROM mirror_document"
    ") AS u GROUP BY u.upstream"
)
USED_OF: Final = "SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM mirror_blob WHERE upstream = :upstream"
#: What reserved content is going to need beside content in the store.
TO_COME: Final = (
    "SELECT CAST(coalesce(sum(CASE WHEN r.size > coalesce(b.size, 0) THEN r.size - coalesce(b.size, 0) ELSE 0 END), 0)"
    " AS BIGINT) FROM ("
    " SELECT digest, max(size) AS size FROM mirror_reservation WHERE upstream = :upstream AND ends_at > :now"
    " GROUP BY digest"
    ") AS r LEFT JOIN mirror_blob b ON b.upstream = :upstream AND b.digest = r.digest"
)
#: Content in the store that stays if all goes that may: reserved, or that of the documents that OLDEST spares.
KEPT: Final = (
    "WITH spared AS ("
    " SELECT name, digest FROM mirror_document WHERE upstream = :upstream AND served_at >= :not_since UNION"
    " SELECT d.name, d.digest FROM mirror_reservation r JOIN mirror_document d ON d.digest = r.digest"
    " WHERE r.upstream = :upstream AND d.upstream = :upstream UNION"
    " SELECT d.name, d.digest FROM mirror_reservation r JOIN mirror_part p ON p.digest = r.digest"
    " JOIN mirror_document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE r.upstream = :upstream AND d.upstream = :upstream"
    "), kept AS ("
    " SELECT digest FROM spared UNION"
    " SELECT p.digest FROM spared s JOIN mirror_part p ON p.name = s.name AND p.parent = s.digest UNION"
    " SELECT digest FROM mirror_reservation WHERE upstream = :upstream"
    ") SELECT CAST(coalesce(sum(b.size), 0) AS BIGINT) FROM kept k"
    " JOIN mirror_blob b ON b.upstream = :upstream AND b.digest = k.digest"
)
OLDEST: Final = (
    "SELECT d.name, d.digest FROM mirror_document d WHERE d.upstream = :upstream AND d.served_at < :not_since"
    " AND NOT EXISTS (SELECT 1 FROM mirror_reservation r WHERE r.upstream = :upstream AND r.digest = d.digest)"
    " AND NOT EXISTS (SELECT 1 FROM mirror_part p JOIN mirror_reservation r ON r.upstream = :upstream"
    " AND r.digest = p.digest WHERE p.name = d.name AND p.parent = d.digest)"
    " ORDER BY d.served_at, d.name, d.digest LIMIT 1"
)
#: Of a document and the content it names: those that no other document of its upstream is, or names.
ONLY_ITS: Final = (
    "SELECT c.digest FROM ("
    " SELECT digest FROM mirror_part WHERE name = :name AND parent = :digest UNION"
    " SELECT digest FROM mirror_document WHERE name = :name AND digest = :digest"
    ") AS c WHERE NOT EXISTS (SELECT 1 FROM mirror_document d WHERE d.digest = c.digest AND d.upstream = :upstream"
    " AND NOT (d.name = :name AND d.digest = :digest))"
    " AND NOT EXISTS (SELECT 1 FROM mirror_part p JOIN mirror_document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE p.digest = c.digest AND d.upstream = :upstream AND NOT (d.name = :name AND d.digest = :digest))"
)
#: Whether anything of a repository is, or names, a digest.
NAMED: Final = (
    "SELECT 1 FROM mirror_document WHERE name = :name AND digest = :digest UNION ALL"
    " SELECT 1 FROM mirror_part WHERE name = :name AND digest = :digest LIMIT 1"
)
UNNAMED: Final = (
    "SELECT b.digest FROM mirror_blob b WHERE b.upstream = :upstream"
    " AND NOT EXISTS (SELECT 1 FROM mirror_document d WHERE d.digest = b.digest AND d.upstream = b.upstream)"
    " AND NOT EXISTS (SELECT 1 FROM mirror_part p JOIN mirror_document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE p.digest = b.digest AND d.upstream = b.upstream)"
)
LEAVING: Final = "SELECT digest, mark FROM mirror_leaving WHERE upstream = :upstream ORDER BY digest"
WANTED: Final = (
    "SELECT 1 FROM mirror_document WHERE digest = :digest AND upstream = :upstream UNION ALL"
    " SELECT 1 FROM mirror_part p JOIN mirror_document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE p.digest = :digest AND d.upstream = :upstream UNION ALL"
    " SELECT 1 FROM mirror_reservation WHERE upstream = :upstream AND digest = :digest AND ends_at > :now LIMIT 1"
)
FORGET_UPSTREAM: Final = (
    "DELETE FROM mirror_tag WHERE name IN (SELECT name FROM mirror_document WHERE upstream = :upstream)",
    "DELETE FROM mirror_document WHERE upstream = :upstream",
    "DELETE FROM mirror_blob WHERE upstream = :upstream",
    "DELETE FROM mirror_reservation WHERE upstream = :upstream",
    "DELETE FROM mirror_leaving WHERE upstream = :upstream",
)
CONTENTS: Final = (
    "SELECT digest FROM mirror_blob WHERE upstream = :upstream UNION"
    " SELECT digest FROM mirror_document WHERE upstream = :upstream UNION"
    " SELECT p.digest FROM mirror_part p JOIN mirror_document d ON d.name = p.name AND d.digest = p.parent"
    " WHERE d.upstream = :upstream"
)
FORGET_CONTENT: Final = "DELETE FROM mirror_blob WHERE upstream = :upstream AND digest = :digest AND mark = :mark"
DISTRUST: Final = "DELETE FROM mirror_document WHERE name = :name AND digest = :digest AND media_type = :octets"
DISTRUST_PARTS: Final = (
    "UPDATE mirror_part SET is_confirmed = 0 WHERE name = :name AND digest = :digest"
    " AND NOT EXISTS (SELECT 1 FROM mirror_document d WHERE d.name = :name AND d.digest = :digest)"
)
DROP_TAG: Final = "DELETE FROM mirror_tag WHERE name = :name AND tag = :tag"
DROP_TAGS_OF_DOCUMENT: Final = "DELETE FROM mirror_tag WHERE name = :name AND digest = :digest"
DROP_DOCUMENT: Final = "DELETE FROM mirror_document WHERE name = :name AND digest = :digest"
DROP_BLOB: Final = "DELETE FROM mirror_blob WHERE upstream = :upstream AND digest = :digest"
FORGET_LEAVING: Final = "DELETE FROM mirror_leaving WHERE upstream = :upstream AND digest = :digest AND mark = :mark"
LEAVE: Final = (
    "INSERT INTO mirror_leaving (upstream, digest, mark) VALUES (:upstream, :digest, :mark)"
    " ON CONFLICT (upstream, digest) DO UPDATE SET mark = excluded.mark"
)
RESERVE: Final = (
    "INSERT INTO mirror_reservation (id, owner, upstream, digest, size, ends_at)"
    " VALUES (:id, :owner, :upstream, :digest, :size, :ends_at)"
)
RENEW_RESERVATIONS: Final = "UPDATE mirror_reservation SET ends_at = :ends_at WHERE owner = :owner"
END_RESERVATION: Final = "DELETE FROM mirror_reservation WHERE id = :id"
END_RESERVATIONS: Final = "DELETE FROM mirror_reservation WHERE owner = :owner"
END_DEAD_RESERVATIONS: Final = "DELETE FROM mirror_reservation WHERE upstream = :upstream AND ends_at <= :now"
