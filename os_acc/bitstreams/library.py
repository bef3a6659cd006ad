# SPDX-License-Identifier: Apache-2.0

"""All of this package for those who need a bitstream: find, fetch, verify."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import logging
import os
from collections.abc import Callable, Iterator

from oslo_config import cfg
from oslo_log import log

from os_acc import exception
from os_acc.bitstreams import (
    download,
    formats,
    image_selection,
    options,
    policy,
    properties,
)
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.source import ImageSource
from os_acc.objects.image import Bitstream, BitstreamRequest, Header, Image
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.region import Region
from os_acc.store import errors
from os_acc.store.locks import Locks

LOG = log.getLogger(__name__)

_LEVELS = {
    options.InvisibleImage.USUAL: logging.DEBUG,
    options.InvisibleImage.TOLD: logging.WARNING,
}
# Images that are looked at for the sake of a message.
_MOST_TOLD = 1000


def build(conf: cfg.ConfigOpts, state: str, locks: Locks) -> Library:
    """The library that the options describe; nothing is opened or asked yet.

    :param state: absolute path of the state directory.
    :raises InvalidConfiguration: an option cannot be used.
    """
    settings = options.BitstreamSettings.load(conf)
    return Library(
        functools.partial(_source, conf, settings),
        Cache(os.path.join(state, options.DIRECTORY), settings.cache_size, locks),
        policy.ImagePolicy.load(conf),
        settings.certificates,
        settings.unseen,
    )


def _source(conf: cfg.ConfigOpts, settings: options.BitstreamSettings) -> ImageSource:
    # Most hosts need neither, and keystoneauth1 takes long to import.
    if settings.source == "directory":
        from os_acc.bitstreams.directory import Directory

        return Directory(settings.directory)
    from os_acc.bitstreams.glance.source import Glance

    return Glance(conf)


class Library:
    """The images that regions are programmed with.

    Every deadline is one of :func:`time.monotonic`.

    :param make_source: makes the place where the images come from, when the
        first of them is asked for.
    :param certificates: the directory of those who may sign images, where the
        rules ask for a signature.
    :param unseen: what it is that an instance's own image is not to be seen.
    :ivar cache: what of them is on this host.
    """

    def __init__(
        self,
        make_source: Callable[[], ImageSource],
        cache: Cache,
        rules: policy.ImagePolicy,
        certificates: str = "",
        unseen: options.InvisibleImage = options.InvisibleImage.TOLD,
    ) -> None:
        self._make_source = make_source
        self._made: list[ImageSource] = []
        self._rules = rules
        self._certificates = certificates
        self._unseen = unseen
        self.cache = cache

    @property
    def _source(self) -> ImageSource:
        # Threads that come first together may make one each; the first is all of
        # theirs. A lock would be held for ever in a child that is forked meanwhile.
        if not self._made:
            self._made.append(self._make_source())
        return self._made[0]

    def image_for(
        self, wish: BitstreamRequest, region: Region, deadline: float
    ) -> Image:
        """The one image that is asked for, and may be programmed.

        :raises BitstreamError: there is none, or several, or none that fits or
            is allowed; see :func:`os_acc.bitstreams.image_selection.choose`.
        :raises ImageServiceUnavailable: nobody answers.
        """
        if wish.bitstream_id:
            image = self._source.image(wish.bitstream_id, deadline)
            return image_selection.choose(wish, region, [image], self._rules)
        allowed = list(self._trusted(wish, deadline))
        try:
            return image_selection.choose(wish, region, allowed, self._rules)
        except (exception.ImageNotFound, exception.ImageMismatch):
            # An error tells of what is not allowed, too.
            found = self._source.images(image_selection.filters(wish), deadline)
            others = itertools.islice(found, _MOST_TOLD)
            return image_selection.choose(
                wish, region, itertools.chain(allowed, others), self._rules
            )

    def answers(self, deadline: float) -> bool:
        """Ask the source for one page of bitstreams; whether it has any.

        :raises ImageServiceUnavailable: nobody answers.
        :raises ImageServiceNotConfigured: nobody has said whom to ask.
        :raises InvalidConfiguration: they do not let us in, or are not there.
        """
        found = self._source.images({"tag": properties.TAG}, deadline)
        return next(iter(found), None) is not None

    def about(self, image_id: str, deadline: float) -> Image:
        """An image by its id, whether it may be programmed or not.

        :raises ImageNotFound: there is none, or none that we may see.
        :raises ImageServiceUnavailable: nobody answers.
        """
        return self._source.image(image_id, deadline)

    def booted(self, image_id: str, instance: str, deadline: float) -> Image | None:
        """The image that an instance boots from, which may ask for a bitstream.

        :param instance: its uuid, for messages.
        :returns: None where it cannot be asked, and the operator has not said that
            it has to be (``instance_images``).
        :raises ImageNotFound: it has to be, and we may not see it, or it is gone.
        :raises ImageServiceNotConfigured: it has to be, and nobody has said whom
            to ask.
        :raises ImageServiceUnavailable: nobody answers.
        """
        try:
            return self.about(image_id, deadline)
        except exception.ImageServiceNotConfigured as error:
            if self._unseen is options.InvisibleImage.REFUSED:
                raise
            # The host may have nothing to do with bitstreams.
            LOG.debug("the image of %s is not asked: %s", instance, error)
        except exception.ImageNotFound as error:
            if self._unseen is options.InvisibleImage.REFUSED:
                raise exception.ImageNotFound(
                    f"image {image_id} of instance {instance} is not to be seen, so "
                    f"nobody knows what it asks for: {error.message}",
                    hint="give os_acc the credentials of an administrator, or set "
                    f"instance_images in [{options.GROUP.name}] to ignore",
                ) from error
            LOG.log(
                _LEVELS[self._unseen],
                "image %s of instance %s is not to be seen (%s): if it asks for a "
                "bitstream, the instance does not get that; give os_acc the "
                "credentials of an administrator, or set instance_images in [%s] to "
                "required",
                *(image_id, instance, error.message, options.GROUP.name),
            )
        return None

    def named(self, text: str, deadline: float) -> Image:
        """The one image with this id, or bitstream with this name, that is allowed.

        :raises ImageNotFound: there is none.
        :raises ImageRefused: none of them may be programmed.
        :raises ImageAmbiguous: several have this name.
        :raises ImageServiceUnavailable: nobody answers.
        """
        if canonical_uuid(text):
            image = self._source.image(text, deadline)
            policy.check(image, self._rules)
            return image
        wish = BitstreamRequest(bitstream_name=text)
        allowed = {
            each.id: each
            for each in self._trusted(wish, deadline)
            if _is_bitstream(each) and not policy.reasons(each, self._rules)
        }
        if len(allowed) > 1:
            raise exception.ImageAmbiguous(
                f"several images have the name {exception.show(text)}: "
                f"{', '.join(allowed)}"
            )
        for image in allowed.values():
            return image
        everywhere = self._source.images(image_selection.filters(wish), deadline)
        for image in filter(_is_bitstream, itertools.islice(everywhere, _MOST_TOLD)):
            policy.check(image, self._rules)
        raise exception.ImageNotFound(
            f"no image with the tag {properties.TAG} has the name "
            f"{exception.show(text)}"
        )

    @contextlib.contextmanager
    def fetched(
        self,
        image: Image,
        deadline: float,
        progress: download.Progress | None = None,
        region: Region | None = None,
    ) -> Iterator[Bitstream]:
        """The file of an image, verified, and kept for as long as this lasts.

        :param progress: is told how much of a download is there.
        :param region: which it has to be built for; None: whichever it is for.
        :raises ImageRefused: it may not be programmed.
        :raises ImageInvalid: it is not what its hash, its properties, its
            signature or its own head says.
        :raises ImageMismatch: it is not built for the region.
        :raises CacheFull: there is no space for it.
        :raises ImageServiceUnavailable: it was not here at the deadline.
        :raises LockTimeout: somebody else still fetches it at the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        policy.check(image, self._rules)
        with contextlib.ExitStack() as kept:
            file = kept.enter_context(self._file(image, deadline, progress))
            try:
                header = self._proved(image, file, region, deadline)
            except (
                exception.ImageInvalid,
                exception.ImageMismatch,
                exception.ImageRefused,
            ):
                # The file was sound when it was fetched, and may have been altered
                # since: into one of another kind, or for another region.
                if not self.cache.forget(image, deadline):
                    raise
                file = kept.enter_context(self._file(image, deadline, progress))
                header = self._proved(image, file, region, deadline)
            yield Bitstream(image, self.cache.path(image), _size(file), header)

    @contextlib.contextmanager
    def kept(
        self, image: Image, region: Region, deadline: float
    ) -> Iterator[Bitstream | None]:
        """The file of an image of which nothing is known but its hash.

        For a region that was programmed with it before, while nobody answers
        who could say more: whose it is, and who has signed it, was judged then.
        None: it is not in the cache.

        :raises ImageRefused: the rules allow files of its format no more.
        :raises ImageInvalid: it is not what its own head says.
        :raises ImageMismatch: it is not built for the region.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self.cache.kept(image, deadline) as file:
            if file is None:
                yield None
                return
            header = _header(image, file)
            policy.check_file(header, image, self._rules)
            formats.check(header, image, region)
            yield Bitstream(image, self.cache.path(image), _size(file), header)

    def forget(self, image: Image, deadline: float) -> bool:
        """Drop the file of an image that was found altered; whether it was."""
        return self.cache.forget(image, deadline)

    def _trusted(self, wish: BitstreamRequest, deadline: float) -> Iterator[Image]:
        """What those have who may say what is programmed; some of it twice."""
        for filters in image_selection.searches(wish, self._rules):
            yield from self._source.images(filters, deadline)

    def _file(
        self, image: Image, deadline: float, progress: download.Progress | None
    ) -> contextlib.AbstractContextManager[io.FileIO]:
        return self.cache.fetched(self._source, image, deadline, progress)

    def _proved(
        self, image: Image, file: io.FileIO, region: Region | None, deadline: float
    ) -> Header:
        """What is in a file, if that and its signature are sound, and it fits."""
        try:
            if self._rules.signed:
                # Few need it, and cryptography takes long to import.
                from os_acc.bitstreams import signature

                signature.verify(image, file, self._certificates, deadline)
            header = _header(image, file)
        except OSError as error:
            raise errors.from_os_error(error, self.cache.path(image)) from error
        policy.check_file(header, image, self._rules)
        if region is not None:
            formats.check(header, image, region)
        return header


def _is_bitstream(image: Image) -> bool:
    return properties.TAG in image.tags


def _header(image: Image, file: io.FileIO) -> Header:
    try:
        return formats.read_header(file, _size(file))
    except exception.ImageInvalid as error:
        raise exception.ImageInvalid(
            f"image {properties.title(image)}: {error.message}", hint=error.hint
        ) from error


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size
