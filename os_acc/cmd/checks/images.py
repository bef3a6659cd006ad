# SPDX-License-Identifier: Apache-2.0

"""Checks of bitstreams: source, signatures and cache."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from os_acc import exception
from os_acc.bitstreams.options import BitstreamSettings
from os_acc.cmd import environment
from os_acc.cmd.checks import CheckContext, Finding, failed, ok, warning
from os_acc.store import errors

# Timeout in seconds for an Image service session and one page of images.
_PATIENCE = 30.0
_SHOWN = 4
_NO_CACHE = "there is no cache yet: the first download creates it"


def source(context: CheckContext) -> Iterator[Finding]:
    """Check that the source of images answers."""
    settings = BitstreamSettings.load(context.config)
    where = settings.directory if settings.source == "directory" else "Glance"
    try:
        has_any = context.images.answers(time.monotonic() + _PATIENCE)
    except exception.InvalidConfiguration as error:
        if error.reason is not exception.ConfigurationReason.NOT_CONFIGURED:
            raise
        yield _no_source(context, error)
        return
    if has_any:
        yield ok(f"{where} answers and has images with the tag FPGA")
    else:
        yield warning(
            f"{where} answers, but has no visible image with the tag FPGA",
            "upload an image, or check the user in [os_acc_glance]",
        )


def signers(context: CheckContext) -> Iterator[Finding]:
    """Check the certificates of signers, if images have to be signed."""
    settings = BitstreamSettings.load(context.config)
    if not settings.signed:
        yield ok("signatures are not required")
        return
    # Rarely needed, and cryptography imports slowly.
    from os_acc.bitstreams import signature

    directory = settings.certificates
    found = signature.survey(directory)
    worthless = [(name, why) for name, why in found.items() if why]
    for name, why in worthless[:_SHOWN]:
        yield warning(f"{directory}/{name}: {why}", "renew or remove the certificate")
    if len(worthless) > _SHOWN:
        yield warning(
            f"{len(worthless) - _SHOWN} more certificates are unusable",
            f"see {directory}",
        )
    trusted = sum(signature.is_signer(name) and not found[name] for name in found)
    if trusted:
        yield ok(f"certificates in {directory} that may sign images: {trusted}")
    else:
        yield failed(
            f"no certificate in {directory} may sign images: every image is rejected",
            "add a certificate as <certificate uuid>.pem, with its issuers",
        )


def cache(context: CheckContext) -> Iterator[Finding]:
    """Check the owner, the permissions and the free space of the cache."""
    context.check_owner()
    path = context.images.cache.directory
    mode = _mode(path)
    if mode is not None and not stat.S_ISDIR(mode):
        yield failed(
            f"{path} is not a directory, and the helper does not follow links",
            "move it away: the next download creates the directory",
        )
        return
    if mode is not None:
        yield from _access(context, path, mode)
    yield _fill(context, is_there=mode is not None)


def files(context: CheckContext) -> Iterator[Finding]:
    """Check for foreign files in the cache."""
    context.check_owner()
    if _mode(context.images.cache.directory) is None:
        yield ok(_NO_CACHE)
        return
    found = context.images.cache.survey()
    if found.temporaries:
        yield warning(
            "abandoned downloads: " + exception.some(sorted(found.temporaries), _SHOWN),
            "run 'os-acc bitstream prune', or wait for the next "
            "download, which removes them",
        )
    if found.strangers:
        yield warning(
            "files that are neither images nor downloads: "
            + exception.some(sorted(found.strangers), _SHOWN),
            "remove them: os_acc neither removes them nor counts their size",
        )
    if not found.temporaries and not found.strangers:
        yield ok(f"images: {len(found.entries)}; no other files")


def _no_source(context: CheckContext, error: exception.OsAccError) -> Finding:
    regions = [
        each.device.region
        for each in context.look.inventory.providers.values()
        if each.device.region is not None and each.device.region.interface_id
    ]
    if not regions:
        return ok("no source is configured, and no device of this host needs one")
    return warning(
        f"no source is configured, but {regions[0]} can be programmed: {error.message}",
        error.hint,
    )


def _access(context: CheckContext, path: str, mode: int) -> Iterator[Finding]:
    uid = context.check_owner()
    owner, me = environment.name_of(uid), environment.name_of(os.geteuid())
    if os.lstat(path).st_uid != uid:
        yield failed(f"{path} does not belong to {owner}", f"chown -R {owner} {path}")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        yield failed(f"{me} cannot write to {path}", f"chmod u+rwx {path}")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield warning(
            f"users other than {owner} may write to {path} and remove its files",
            f"chmod go-w {path}",
        )


def _fill(context: CheckContext, *, is_there: bool) -> Finding:
    cache = context.images.cache
    found = cache.survey()
    room = cache.capacity(found.taken)
    settings = BitstreamSettings.load(context.config)
    largest, limit = settings.max_size, settings.cache_size
    usage = f"images take {found.taken} of {limit} bytes"
    if found.taken > limit:
        return warning(
            f"{usage}, more than the limit",
            "wait for the next download, which evicts some, or run "
            f"'os-acc bitstream prune --size {limit}'",
        )
    if room < largest:
        return warning(
            f"{usage}, with room for {room} in total: an image of "
            f"max_image_size, {largest}, does not fit",
            "free space on its file system, or change cache_size or "
            "max_image_size in [os_acc_bitstreams]",
        )
    return ok(usage if is_there else _NO_CACHE)


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.from_os_error(error, path) from error
