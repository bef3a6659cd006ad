# SPDX-License-Identifier: Apache-2.0

"""``os-acc bitstream``: the cached bitstream images of this host."""

from __future__ import annotations

import argparse
import datetime
import functools
from collections.abc import Mapping, Sequence

from os_acc import exception
from os_acc.bitstreams.cache import CachedImage
from os_acc.bitstreams.library import Library
from os_acc.cmd import arguments, base, environment
from os_acc.objects.bitstream import Bitstream, Digest


class BitstreamList(base.Listing):
    """List the bitstream images of this host, least recently used first.

    Changes nothing, and asks the source of images for --names only.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--names", action="store_true", help="also show the names of the images"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        images = self.library()
        cache = images.cache
        used: base.Columns[CachedImage] = {
            "Last Used": lambda each: _moment(each.used),
            "In Use": cache.is_used,
        }
        if parsed_args.names:
            names: Mapping[Digest, Sequence[str]] = {}
            try:
                names = images.names(self.deadline())
            except exception.OsAccError as error:
                # The images are on this host.
                self.remark(f"the names are unknown: {error.message}")
            used["Names"] = lambda each: list(names.get(each.digest, ()))
        return base.table({**_CACHED, **used}, cache.survey().entries)


class BitstreamFetch(base.Listing):
    """Fetch and verify bitstream images before they are needed.

    No device is touched. An image that this host has already is not fetched,
    but verified again as by a plug.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "image",
            metavar="IMAGE",
            nargs="+",
            help="the id of an image, or the name of one with the tag FPGA",
        )
        parser.add_argument(
            "--timeout",
            **arguments.SECONDS,
            help="time limit for each image; default: [os_acc] plug_timeout",
        )
        parser.add_argument(
            "--long",
            action="store_true",
            help="also show the interface and the functions of the bitstream",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        environment.check_owner(self.settings.state_path)
        images, timeout = self.library(), parsed_args.timeout
        found = [self._fetched(images, text, timeout) for text in parsed_args.image]
        columns = _FETCHED | _LONG if parsed_args.long else _FETCHED
        return base.table(columns, found)

    def _fetched(self, images: Library, text: str, timeout: float | None) -> Bitstream:
        deadline = self.deadline(timeout)
        image = images.named(text, deadline)
        report = functools.partial(self.report, image.id)
        try:
            with images.fetched(image, deadline, report) as bitstream:
                return bitstream
        finally:
            self.end_progress()

    def report(self, title: str, done: int, size: int | None) -> None:
        """Show the progress of a download, in bytes."""
        text = f"{title} {done // _MIB} MiB"
        if size:
            text = f"{title} {base.bar(done / size)} of {size / _MIB:.1f} MiB"
        self.progress(text)


class BitstreamVerify(base.Listing):
    """Hash every image of this host again, and drop altered ones.

    A dropped image is fetched anew when it is needed. Ends with 1 if an image
    was dropped.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        environment.check_owner(self.settings.state_path)
        cache = self.library().cache

        def result(image: CachedImage) -> str:
            is_sound = cache.verify(image.digest, self.deadline())
            self.is_failed |= not is_sound
            return "sound" if is_sound else "altered"

        return base.table({**_CACHED, "Result": result}, cache.survey().entries)


class BitstreamPrune(base.Listing):
    """Remove unused images, the least recently used first."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--size",
            metavar="SIZE",
            type=arguments.size,
            default=0,
            help="target size of the remaining images: bytes, or as 5GiB. "
            "Default: remove all unused images",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        environment.check_owner(self.settings.state_path)
        gone = self.library().cache.prune(parsed_args.size, self.deadline())
        return base.table(_CACHED, gone)


_MIB = 1 << 20
# Enough to distinguish images, and short enough for a terminal.
_SHOWN = 16


def _hash(digest: Digest) -> base.Formatted:
    return base.Formatted(digest.value, f"{digest.value[:_SHOWN]}...")


_CACHED: base.Columns[CachedImage] = {
    "Hash Algorithm": lambda each: each.digest.algorithm,
    "Hash": lambda each: _hash(each.digest),
    "Size": lambda each: each.size,
}
_FETCHED: base.Columns[Bitstream] = {
    "ID": lambda each: each.image.id,
    "Name": lambda each: each.image.name,
    "Hash Algorithm": lambda each: Digest.of(each.image).algorithm,
    "Hash": lambda each: _hash(Digest.of(each.image)),
    "Size": lambda each: each.size,
    "Format": lambda each: each.header.format.value,
}
_LONG: base.Columns[Bitstream] = {
    "Built For": lambda each: each.header.interface_id,
    "Functions": lambda each: list(each.header.function_ids),
}


def _moment(used: float) -> str:
    when = datetime.datetime.fromtimestamp(used, datetime.UTC)
    return when.isoformat(timespec="seconds")
