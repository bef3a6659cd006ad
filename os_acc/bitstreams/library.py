# SPDX-License-Identifier: Apache-2.0

"""The library of bitstreams: finds, fetches and verifies images."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from oslo_config import cfg
from oslo_log import log

from os_acc import exception
from os_acc.bitstreams import (
    formats,
    image_selection,
    options,
    policy,
    properties,
)
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.download import Progress
from os_acc.bitstreams.source import ImageSource
from os_acc.objects.bitstream import Bitstream, BitstreamRequest, Digest, Header, Image
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.region import Region
from os_acc.store import errors

LOG = log.getLogger(__name__)


def build(conf: cfg.ConfigOpts, state: str) -> Library:
    """Return the library that the options describe, without any access.

    :param state: absolute path of the state directory.
    :raises InvalidConfiguration: an option cannot be used.
    """
    settings = options.BitstreamSettings.load(conf)
    return Library(
        functools.partial(_source, conf, settings),
        Cache(state, settings.cache_size),
        settings,
    )


def _source(conf: cfg.ConfigOpts, settings: options.BitstreamSettings) -> ImageSource:
    # Imported late: most hosts need neither, and keystoneauth1 is slow to import.
    if settings.source == "directory":
        from os_acc.bitstreams.directory import Directory

        return Directory(settings.directory)
    from os_acc.bitstreams.glance import Glance

    return Glance(conf)


class Library:
    """The images that regions are programmed with.

    Deadlines are on the clock of :func:`time.monotonic`.

    :param make_source: creates the image source at the first access.
    :ivar cache: the images on this host.
    """

    def __init__(
        self,
        make_source: Callable[[], ImageSource],
        cache: Cache,
        settings: options.BitstreamSettings,
    ) -> None:
        self._make_source = make_source
        self._made: list[ImageSource] = []
        self._settings = settings
        self.cache = cache

    @property
    def _source(self) -> ImageSource:
        # Concurrent threads may each create one; all use the first. A lock would stay
        # held in a child that is forked meanwhile.
        if not self._made:
            self._made.append(self._make_source())
        return self._made[0]

    def image_for(
        self, request: BitstreamRequest, region: Region, deadline: float
    ) -> Image:
        """Return the image that matches the request and may be programmed.

        :raises BitstreamError: no image matches, fits or is allowed, or several do;
            see :func:`os_acc.bitstreams.image_selection.choose`.
        :raises ServiceUnavailable: the source does not answer.
        """
        if request.bitstream_id:
            image = self._source.image(request.bitstream_id, deadline)
            return image_selection.choose(request, region, [image], self._settings)
        found = self._trusted(request, deadline)
        return image_selection.choose(request, region, found, self._settings)

    def names(self, deadline: float) -> Mapping[Digest, Sequence[str]]:
        """Return the names of the source's bitstreams, by digest.

        :raises OsAccError: see :meth:`answers`.
        """
        found: dict[Digest, list[str]] = defaultdict(list)
        for image in self._source.images({"tag": properties.TAG}, deadline):
            with contextlib.suppress(exception.ImageUnusable):
                if policy.is_shown(image, self._settings):
                    found[Digest.of(image)].append(image.name)
        return found

    def answers(self, deadline: float) -> bool:
        """Read one page of bitstreams; return whether there are any.

        :raises ServiceUnavailable: the source does not answer.
        :raises InvalidConfiguration: no source is configured (NOT_CONFIGURED), it
            denies access, or the endpoint is wrong.
        """
        found = self._source.images({"tag": properties.TAG}, deadline)
        return next(iter(found), None) is not None

    def about(self, image_id: str, deadline: float) -> Image:
        """Return an image by ID, whether it may be programmed or not.

        :raises ImageNotFound: it does not exist, or is not visible.
        :raises ServiceUnavailable: the source does not answer.
        """
        return self._source.image(image_id, deadline)

    def booted(self, image_id: str, instance: str, deadline: float) -> Image | None:
        """Return the image that an instance boots from; it may request a bitstream.

        :param instance: the instance's UUID and name, for messages.
        :returns: None if the image is not visible and not required
            (``instance_images``).
        :raises ImageNotFound: it is required, but not visible or gone.
        :raises InvalidConfiguration: it is required, but no source is
            configured.
        :raises ServiceUnavailable: the source does not answer.
        """
        try:
            return self.about(image_id, deadline)
        except exception.InvalidConfiguration as error:
            if error.reason is not exception.ConfigurationReason.NOT_CONFIGURED:
                raise
            if self._settings.unseen is None:
                raise
            # The host may not use bitstreams at all.
            LOG.debug("the image of instance %s is not read: %s", instance, error)
        except exception.ImageNotFound as error:
            if self._settings.unseen is None:
                raise exception.ImageNotFound(
                    f"cannot read image {image_id} of instance {instance}; its "
                    f"bitstream request is unknown: {error.message}",
                    hint="give os_acc the credentials of an administrator, or set "
                    f"instance_images in [{options.GROUP.name}] to ignore",
                ) from error
            LOG.log(
                self._settings.unseen,
                "cannot read image %s of instance %s (%s): a bitstream that it "
                "requests is not programmed; give os_acc the credentials of an "
                "administrator, or set instance_images in [%s] to required",
                *(image_id, instance, error.message, options.GROUP.name),
            )
        return None

    def named(self, text: str, deadline: float) -> Image:
        """Return the allowed image with this ID, or bitstream with this name.

        :raises ImageNotFound: no image matches.
        :raises ImageRefused: the image may not be programmed.
        :raises ImageUnusable: several allowed bitstreams have this name.
        :raises ServiceUnavailable: the source does not answer.
        """
        if canonical_uuid(text):
            image = self._source.image(text, deadline)
            policy.check(image, self._settings)
            return image
        request = BitstreamRequest(bitstream_name=text)
        found = {
            each.id: each
            for each in self._trusted(request, deadline)
            if properties.TAG in each.tags
        }
        allowed = [
            each for each in found.values() if not policy.reasons(each, self._settings)
        ]
        if len(allowed) > 1:
            raise exception.ImageUnusable(
                f"several images have the name {exception.show(text)}: "
                f"{', '.join(each.id for each in allowed)}",
                reason=exception.ImageReason.AMBIGUOUS,
            )
        for image in allowed or found.values():
            policy.check(image, self._settings)
            return image
        raise exception.ImageNotFound(
            f"no image with the tag {properties.TAG} has the name "
            f"{exception.show(text)}",
            hint="its owner has to be in allowed_projects of "
            f"[{options.GROUP.name}], or the image public",
        )

    @contextlib.contextmanager
    def fetched(
        self,
        image: Image,
        deadline: float,
        progress: Progress | None = None,
        region: Region | None = None,
    ) -> Iterator[Bitstream]:
        """Provide the verified file of an image for the duration of the context.

        :param progress: called with the progress of a download.
        :param region: the region that the image must fit; None accepts any.
        :raises ImageRefused: the image may not be programmed.
        :raises ImageUnusable: INVALID: its file contradicts its hash, its properties,
            its signature or its own header. MISMATCH: it is not built for the region.
        :raises CacheFull: there is not enough space.
        :raises ServiceUnavailable: the download did not end in time.
        :raises LockTimeout: another download of the image did not end in time.
        :raises StateUnavailable: the cache cannot be used.
        """
        policy.check(image, self._settings)
        with contextlib.ExitStack() as kept:

            def verified() -> Bitstream:
                file = kept.enter_context(
                    self.cache.fetched(self._source, image, deadline, progress)
                )
                return self._checked(image, file, region, deadline)

            try:
                found = verified()
            except (exception.ImageUnusable, exception.ImageRefused):
                # The file was valid when it was fetched, but may have been altered
                # since, even into another format or for another region.
                if self.cache.verify(Digest.of(image), deadline):
                    raise
                found = verified()
            yield found

    @contextlib.contextmanager
    def kept(
        self, image: Image, region: Region, deadline: float
    ) -> Iterator[Bitstream | None]:
        """Provide the cached file of an image, by its hash alone.

        Used to restore a region's earlier bitstream while the source does not answer;
        its owner and signature were checked then. Yields None if it is not cached.

        :raises ImageRefused: its file format is no longer allowed.
        :raises ImageUnusable: its header is invalid, or it is not built for the
            region.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self.cache.kept(image, deadline) as file:
            if file is None:
                yield None
            else:
                yield self._checked(image, file, region, deadline, is_verified=True)

    def forget(self, image: Image, deadline: float) -> bool:
        """Remove the file of an image if it was altered; return whether it was."""
        return not self.cache.verify(Digest.of(image), deadline)

    def _trusted(self, request: BitstreamRequest, deadline: float) -> Iterator[Image]:
        """Yield the images that the policy trusts; some of them twice."""
        for filters in image_selection.searches(request, self._settings):
            yield from self._source.images(filters, deadline)

    def _checked(
        self,
        image: Image,
        file: io.FileIO,
        region: Region | None,
        deadline: float,
        *,
        is_verified: bool = False,
    ) -> Bitstream:
        """Return the bitstream in a file after all checks.

        :param is_verified: whether its signature was verified before.
        """
        try:
            if self._settings.signed and not is_verified:
                # Imported late: cryptography is slow to import, and rarely needed.
                from os_acc.bitstreams import signature

                signature.verify(image, file, self._settings.certificates, deadline)
            header = _header(image, file)
        except OSError as error:
            raise errors.from_os_error(error, self.cache.path(image)) from error
        policy.check_file(header, image, self._settings)
        if region is not None:
            formats.check(header, image, region)
        return Bitstream(image, self.cache.path(image), _size(file), header)


def _header(image: Image, file: io.FileIO) -> Header:
    try:
        return formats.read_header(file, _size(file))
    except exception.ImageUnusable as error:
        raise exception.ImageUnusable(
            f"image {properties.title(image)}: {error.message}", hint=error.hint
        ) from error


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size
