"""What ``--output json`` of each command prints, in a short form of JSON Schema (see ``schemas``).

A dict is an object with these members and no others, a list an array, a type a value of it; ``optional``, ``maybe`` and
``mapping`` are described there.
"""

from __future__ import annotations

from typing import Any, Final

from docs._tools.schemas import anything, either, mapping, maybe, optional

PAIR: Final = {"reference": str, "runtimeHandler": str}
DESCRIPTOR: Final = {
    "mediaType": str,
    "digest": str,
    "size": int,
    "platform": optional(anything),
    "annotations": optional(mapping(str)),
    "urls": optional([str]),
    "data": optional(str),
    "artifactType": optional(str),
}
REFERRERS: Final = [{**DESCRIPTOR, "artifactType": maybe(str), "annotations": mapping(str)}]
PLATFORM: Final = {
    "os": str,
    "architecture": str,
    "variant": optional(str),
    "os.version": optional(str),
    "os.features": optional([str]),
    "text": str,
}
IMAGE: Final = {
    **PAIR,
    "reference": maybe(str),
    "id": str,
    "platform": maybe(PLATFORM),
    "wantedPlatform": maybe(str),
    "target": maybe(DESCRIPTOR),
    "manifest": maybe(DESCRIPTOR),
    "size": int,
    "labels": maybe(mapping(str)),
    "warnings": maybe([str]),
    "createdAt": maybe(str),
    "updatedAt": maybe(str),
    "pinned": bool,
}
IMAGES: Final = {"images": [IMAGE]}
SYNCED: Final = {
    "images": [{"source": str, "destination": str, "state": str, "digest": str, "sent": int, "referrers": int}],
    "failed": [{"source": str, "destination": str, "message": str, "hint": str, "status": int}],
    "dryRun": bool,
}
COPIED: Final = {
    "destination": str,
    "target": DESCRIPTOR,
    "platforms": [str],
    "leftOut": [str],
    "blobs": [{"digest": str, "size": int, "sent": int, "mountedFrom": optional(str)}],
    "sent": int,
    "referrers": int,
    "dryRun": bool,
}
FAILURES: Final = [{"subject": str, "reason": str}]
VERDICT: Final = {
    "position": [int],
    "descriptor": DESCRIPTOR,
    "platform": maybe(PLATFORM),
    "accepted": bool,
    "rank": maybe(int),
    "rule": str,
    "reason": str,
}
KEPT: Final = {
    "digest": str,
    "inStore": bool,
    "keptBy": [{"kind": str, "name": str, "runtimeHandler": str, "chain": [str]}],
}
LEASE: Final = {
    "id": str,
    "createdAt": str,
    "expiresAt": maybe(str),
    "flat": bool,
    "labels": mapping(str),
    "content": [str],
    "images": [str],
}
REPORT: Final = {
    "faults": [{"kind": str, "subject": str, "detail": str}],
    "blobs": int,
    "bytesHashed": int,
    "records": int,
}
REBUILD: Final = {
    "wasWhole": bool,
    "keptAs": maybe(str),
    "restored": [[str]],
    "skipped": [[str]],
    "copy": maybe(str),
    "unnamed": [str],
    "found": [str],
    "foundLease": maybe(str),
    "reindexed": bool,
}
PLAN: Final = {
    **PAIR,
    "wantedPlatform": str,
    "platform": PLATFORM,
    "manifest": DESCRIPTOR,
    "upToDate": bool,
    "bytesToFetch": int,
    "bytesHere": int,
    "bytesAtSource": int,
    "bytesShared": int,
    "hosts": [str],
    "blobs": [{**DESCRIPTOR, "presence": str, "bytesToFetch": int}],
}
FINDING: Final = {
    "severity": str,
    "file": str,
    "line": maybe(int),
    "key": str,
    "text": str,
    "hint": str,
    "mend": str,
}
HANDLER: Final = {
    "runtimeHandler": str,
    "runtimeType": str,
    "isolation": maybe(str),
    "snapshotter": str,
    "wantedPlatform": str,
    "source": str,
    "declared": bool,
    "origin": mapping(str),
}
IMAGE_USE: Final = {
    **PAIR,
    "id": str,
    "bytes": int,
    "uniqueBytes": int,
    "sharedBytes": int,
    "lastUsedAt": str,
    "pinned": bool,
}
SIZES: Final = {
    "blobs": int,
    "contentBytes": int,
    "linkedBytes": int,
    "keptBytes": int,
    "otherBytes": int,
    "ingests": int,
    "ingestBytes": int,
    "metadataBytes": int,
    "diskBytes": int,
    "diskFreeBytes": int,
}
EVENTS: Final = [{"type": str, "reason": str, "message": str}]
NODE_IMAGE: Final = {"id": str, "runtimeHandler": str, "names": [str], "bytes": int}
FILESYSTEM: Final = {"mountpoint": str, "usedBytes": int, "inodesUsed": int, "timestamp": maybe(str)}
VALUE: Final = {"value": anything, "origin": str}

PUBLISHER: Final = {
    "address": str,
    "namespace": str,
    "connected": bool,
    "reason": str,
    "processId": maybe(int),
}
PUBLISHED_IMAGE: Final = {
    "id": str,
    "state": str,
    "reason": str,
    "nextTryAt": maybe(str),
    "records": [PAIR],
    "names": mapping(str),
    "missingNames": [str],
    "snapshotters": [str],
    "missingSnapshotters": [str],
    "bytesByWay": mapping(int),
    "containers": [str],
}
PUBLISHER_STATUS: Final = {
    **PUBLISHER,
    "storeId": str,
    "version": str,
    "way": maybe(str),
    "wayReason": str,
    "images": [PUBLISHED_IMAGE],
    "unwanted": [str],
    "foreign": [str],
    "warnings": [str],
}
REASONS: Final = [{"id": str, "reason": str}]

EDGED: Final = (
    "profile",
    "runtimeType",
    "remoteRuntimeEndpoint",
    "remoteImageEndpoint",
    "dockerEndpoint",
    "runtimeRequestTimeout",
    "podSandboxImage",
    "memoryCapacity",
    "imagePullProgressDeadline",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMinimumGCAge",
    "nodeStatusMaxImages",
    "RuntimeClassInImageCriApi",
)

UNPACKED: Final = {
    "path": str,
    "entries": int,
    "bytes": int,
    "leftOut": [str],
    "leftOutCount": int,
    "hiddenVolumes": [str],
}

ENSURED: Final = {
    "image": str,
    "runtimeHandler": str,
    "service": str,
    "imageRef": str,
    "pulled": bool,
    "reason": str,
    "message": str,
    "events": EVENTS,
    "steps": [str],
    "gateChange": [str],
}
RESOURCES: Final = {
    "runtimeHandler": maybe(str),
    "os": str,
    "isolation": maybe(str),
    "mapping": str,
    "node": {
        "memoryBytes": maybe(int),
        "allocatableMemoryBytes": maybe(int),
        "swapBytes": maybe(int),
        "processors": maybe(int),
        "cgroup": maybe(str),
    },
    "qosClass": str,
    "podCgroup": maybe(anything),
    "containers": [
        {
            "name": str,
            "cri": anything,
            "oci": anything,
            "cgroupFiles": optional(mapping(str)),
            "explanation": optional([{"field": str, "value": str, "formula": str, "source": str}]),
        }
    ],
    "warnings": [str],
}
#: Command to its output; ``NAME --option`` where an option prints another one.
#: What a command that failed writes to standard error.
ERROR: Final = {"code": str, "message": str, "hint": str, "status": int}
OUTPUTS: Final[dict[str, Any]] = {
    "pull": IMAGES,
    "pull --dry-run": {"pulls": [PLAN], "bytesToFetch": int, "contentBytes": int, "contentBytesAfter": int},
    "images": IMAGES,
    "inspecti": {
        **IMAGE,
        "layers": maybe([{**DESCRIPTOR, "path": optional(str), "diffId": optional(str)}]),
        "config": maybe(anything),
        "info": optional(anything),
    },
    "rmi": {
        "removed": [PAIR],
        "kept": optional([PAIR]),
        "missing": optional([str]),
        "bytesFreed": maybe(int),
        "dryRun": optional(bool),
    },
    "manifest": {"descriptor": DESCRIPTOR, "document": anything},
    "image-config": {"id": str, "document": anything},
    "digest": {"reference": str, "descriptor": DESCRIPTOR},
    "history": {
        "reference": str,
        "id": str,
        "history": [{"created": str, "createdBy": str, "comment": str, "size": int, "layer": maybe(str)}],
    },
    "unpack": UNPACKED,
    "bundle": UNPACKED,
    "tag": IMAGES,
    "untag": {"removed": [PAIR]},
    "pin": {"images": [{**PAIR, "pinned": bool}]},
    "unpin": {"images": [{**PAIR, "pinned": bool}]},
    "gc": {
        "dryRun": bool,
        "blobs": maybe([str]),
        "ingests": maybe([str]),
        "bytesFreed": maybe(int),
        "keptBlobs": maybe(int),
        "failures": maybe(FAILURES),
        "evicted": optional([{**PAIR, "reason": str}]),
        "strays": optional(int),
    },
    "why": {
        "digest": optional(str),
        "inStore": optional(bool),
        "keptBy": optional(KEPT["keptBy"]),
        "images": optional([{**PAIR, **KEPT}]),
    },
    "df": {
        "images": [IMAGE_USE],
        **SIZES,
    },
    "report": {
        "madeAt": str,
        "node": str,
        "host": str,
        "root": str,
        "files": [str],
        "defaultRuntimeHandler": str,
        "handlers": [HANDLER],
        "findings": [FINDING],
        "images": [IMAGE_USE],
        "byHandler": [
            {"runtimeHandler": str, "images": int, "bytes": int, "uniqueBytes": int, "sharedBytes": int},
        ],
        "usage": SIZES,
        "garbage": {"blobs": [str], "ingests": [str], "bytesFreed": int, "keptBlobs": int, "failures": FAILURES},
        "evictions": [
            {"options": str, "evicted": [{**PAIR, "reason": str}], "bytesFreed": int, "blobsFreed": int},
        ],
        "matrices": [
            {
                "references": [str],
                "target": maybe(DESCRIPTOR),
                "failure": str,
                "handlers": [
                    {
                        "runtimeHandler": str,
                        "wantedPlatform": str,
                        "chosen": maybe([int]),
                        "remarks": [str],
                        "hint": str,
                    }
                ],
                "entries": [
                    {
                        "position": [int],
                        "digest": str,
                        "platform": maybe(str),
                        "verdicts": [
                            {"runtimeHandler": str, "accepted": bool, "rank": maybe(int), "rule": str, "reason": int}
                        ],
                    }
                ],
            }
        ],
        "reasons": [str],
    },
    "check": {**REPORT, "rebuild": optional(REBUILD)},
    "repair": {
        "check": REPORT,
        "fetched": [str],
        "bytesFetched": int,
        "deleted": [str],
        "edges": [str],
        "failures": FAILURES,
    },
    "backup": {"file": str, "bytes": int},
    "restore": {"restored": str, "keptAs": maybe(str)},
    "finish-upgrade": {"finished": bool},
    "leases list": {"leases": [LEASE]},
    "leases create": LEASE,
    "leases renew": LEASE,
    "leases delete": {"deleted": [str]},
    "copy": COPIED,
    "push": COPIED,
    "copy --all-tags": SYNCED,
    "sync": SYNCED,
    "export": {
        "images": [{"reference": str, "target": DESCRIPTOR, "platforms": [str], "leftOut": [str]}],
        "size": int,
    },
    "import": {**IMAGES, "unusedBlobs": int, "unusedBytes": int},
    "match": {
        "image": str,
        "handlers": [
            {
                "runtimeHandler": str,
                "wantedPlatform": str,
                "origin": mapping(str),
                "declared": bool,
                "chosen": maybe(VERDICT),
                "runnerUp": maybe(VERDICT),
                "entries": [VERDICT],
                "remarks": [str],
                "hint": str,
            }
        ],
    },
    "auth explain": {
        "reference": str,
        "host": str,
        "repository": str,
        "credentials": maybe(str),
        "failure": maybe(str),
        "steps": [{"outcome": str, "place": str, "member": maybe(str), "reason": str}],
    },
    "hosts": {
        "reference": str,
        "folder": maybe(str),
        "endpoints": [
            {
                "url": str,
                "isUpstream": bool,
                "isAsked": bool,
                "isAskedToResolve": bool,
                "capabilities": [str],
                "source": str,
                "notes": [str],
            }
        ],
        "remarks": [str],
    },
    "catalog": {"registry": str, "repositories": [str], "next": maybe(str)},
    "tags": {"repository": str, "tags": [str], "next": maybe(str)},
    "referrers": {
        "reference": str,
        "subject": DESCRIPTOR,
        "isFromTag": bool,
        "referrers": REFERRERS,
        "remarks": [str],
    },
    "inspect": {
        "reference": str,
        "target": DESCRIPTOR,
        "platforms": [{"platform": maybe(PLATFORM), "manifest": DESCRIPTOR, "contentSize": maybe(int)}],
        "attestations": [DESCRIPTOR],
        "chosen": maybe(
            {
                "manifest": DESCRIPTOR,
                "artifactType": maybe(str),
                "platform": maybe(PLATFORM),
                "id": maybe(str),
                "contentSize": int,
                "layers": [DESCRIPTOR],
                "annotations": mapping(str),
                "config": maybe(anything),
            }
        ),
        "tags": maybe([str]),
        "moreTags": bool,
        "referrers": maybe(REFERRERS),
        "remarks": [str],
    },
    "inspect --raw": {"descriptor": DESCRIPTOR, "document": anything},
    "inspect --config": {"id": str, "document": anything},
    "delete": {
        "repository": str,
        "target": DESCRIPTOR,
        "tags": [str],
        "withManifest": bool,
        "neededBy": [{"kind": str, "digest": str, "tags": [str]}],
        "unread": [str],
        "dryRun": bool,
    },
    "fsinfo": {"imageFilesystems": [FILESYSTEM], "containerFilesystems": [FILESYSTEM]},
    "publish": {
        "published": [str],
        "unchanged": int,
        "removed": [str],
        "failed": REASONS,
        "notRunnable": REASONS,
        "processId": maybe(int),
    },
    "publish --dry-run": {**PUBLISHER, "toPublish": [PUBLISHED_IMAGE], "toRemove": [str], "way": maybe(str)},
    "publish --status": PUBLISHER_STATUS,
    "unpublish": {"removed": [str]},
    "info": {
        "containerd": optional(PUBLISHER_STATUS),
        "conditions": [{"type": str, "status": bool, "reason": str, "message": str}],
        "runtimeHandlers": [str],
        "info": mapping(anything),
    },
    "version": {
        "version": str,
        "commit": maybe(str),
        "runtimeName": maybe(str),
        "runtimeVersion": maybe(str),
        "runtimeApiVersion": maybe(str),
    },
    "tape verify": {"tapes": [{"path": str, "problems": [str]}]},
    "tape format": {"tapes": [{"path": str, "changed": bool}]},
    "tape show": {
        "about": str,
        "hosts": [str],
        "plain": [str],
        "repositories": [{"name": str, "tags": mapping(str), "manifests": [str], "blobs": [str]}],
        "exchanges": [{"method": str, "url": str, "status": int}],
        "faults": [anything],
        "bytes": int,
    },
    "tape gc": {"dryRun": bool, "bodies": [str], "bytesFreed": int, "keptBodies": int},
    "tape to-layout": {"layout": str, "entries": int},
    "tape from-layout": {"tape": str, "bodies": maybe(str)},
    "tape push": {"target": str},
    "tape fetch": {"path": str, "bodies": maybe(str)},
    "tape serve": {"hosts": mapping(str), "environment": mapping(str)},
    "node ensure": either(ENSURED, {"items": [{"pod": str, "container": str, **ENSURED}], "warnings": [str]}),
    "node gc": {
        "service": str,
        "events": EVENTS,
        "gateChange": [str],
        "gateNote": str,
        "left": [NODE_IMAGE],
        "error": str,
        "images": int,
        "inUse": int,
        "pinned": int,
        "byHandler": mapping(int),
        "dryRun": optional(bool),
        "usagePercent": optional(maybe(int)),
        "targetBytes": optional(maybe(int)),
        "freedBytes": optional(int),
        "missingBytes": optional(int),
        "removed": optional([{**NODE_IMAGE, "reason": str}]),
        "failed": optional([{**NODE_IMAGE, "error": str}]),
        "spared": optional([{**NODE_IMAGE, "reason": str}]),
    },
    "node edged-config": {
        **dict.fromkeys(EDGED, VALUE),
        "warnings": [str],
        "faults": [str],
    },
    "node resources": either(RESOURCES, {"items": [{"object": str, **RESOURCES}], "warnings": [str]}),
    "config check": {
        "host": str,
        "files": [str],
        "version": maybe(int),
        "defaultRuntimeHandler": maybe(str),
        "handlers": [HANDLER],
        "findings": [FINDING],
        "kubelet": maybe({"imageServiceEndpoint": str, "containerRuntimeEndpoint": str, "featureGates": mapping(bool)}),
        "passedOver": [str],
    },
    "config default": mapping(anything),
    "config dump": mapping(anything),
}
