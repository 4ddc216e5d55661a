"""The cut of a backup, for `tidewire backup`: POST /admin/v2/backup.

    POST /admin/v2/backup?replace=true    make a cut in the data folder; answers {"folder": PATH, "files": NUMBER}

The caller copies that folder, which is on the broker's machine, and removes it. An earlier cut is in use, or was left
by a backup that was killed. It is replaced only if the request says so. Refusals carry a reason: 409 there is an
earlier cut, 501 the metadata is in etcd, 503 this broker does not decide for the metadata, or something changed
meanwhile.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from broker.errors import NotSupported
from broker.http.parameters import switch_of
from broker.http.refusals import json_response, refusal
from broker.http.resources import Call, Parameter
from storage.backup.cut import BackupCuts, CutExists

PATH: Final = "/admin/v2/backup"


def call(cuts: BackupCuts) -> Call:
    """The call above."""

    async def cut(request: Request) -> Response:
        if not cuts.can_be_cut:
            raise NotSupported(
                "This broker's metadata is in etcd, which no broker can stop for a moment. Stop the cluster, and back "
                "up etcd and the data folder, as docs/operations/backup.md describes."
            )
        try:
            manifest = await cuts.make(replaces=switch_of(request, "replace"))
        except CutExists as there:
            return refusal(409, str(there))
        return json_response({"folder": str(cuts.folder.absolute()), "files": len(manifest.files)})

    return Call(
        "POST",
        PATH,
        cut,
        "Make a cut of the data folder, for a backup.",
        "The cut's folder on the broker's machine, and how many files it has.",
        (Parameter("replace", "Whether to replace an earlier cut.", "boolean"),),
        errors=(409, 501),
    )
