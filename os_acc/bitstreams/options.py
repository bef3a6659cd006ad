# SPDX-License-Identifier: Apache-2.0

"""The options of where bitstreams come from, which may be used, where they are kept."""

from __future__ import annotations

import copy
import dataclasses
import enum
import os
from typing import Self

from oslo_config import cfg, types

from os_acc import exception

GROUP = cfg.OptGroup(
    "os_acc_bitstreams",
    title="Bitstreams of os_acc",
    help="Where the images come from that FPGAs are programmed with, which of "
    "them may be, and how many of them are kept on this host.",
)

#: The directory of the cache, below ``[os_acc] state_path``.
DIRECTORY = "bitstreams"

_GIB = 2**30

OPTIONS: tuple[cfg.Opt, ...] = (
    cfg.StrOpt(
        "source",
        default="glance",
        choices=[
            ("glance", "the Image service; see [os_acc_glance]"),
            (
                "directory",
                "a directory of this host: a file for each image, and "
                "beside it its properties in JSON",
            ),
        ],
        help="Where the images of bitstreams are.",
    ),
    cfg.StrOpt(
        "directory",
        default="/srv/os_acc/images",
        help="The directory with the images, where source is directory. Nobody "
        "but those who may decide what FPGAs are programmed with may be able to "
        "write there.",
    ),
    cfg.IntOpt(
        "cache_size",
        default=10 * _GIB,
        min=1,
        help="Bytes that the images below [os_acc] state_path may take. Where "
        "there is no space for another one, those go that were not used for the "
        "longest time; never one that is in use.",
    ),
    cfg.ListOpt(
        "allowed_projects",
        default=[],
        help="The ids of the projects whose images may be programmed, whatever "
        "their visibility. Whoever can upload images in one of them decides what "
        "FPGAs are programmed with.",
    ),
    cfg.BoolOpt(
        "allow_public",
        default=True,
        help="Whether public images of other projects may be programmed as well. "
        "Glance lets administrators alone publish an image, unless its policy "
        "publicize_image has been changed. Community and shared images never "
        "count as public.",
    ),
    cfg.IntOpt(
        "max_image_size",
        default=_GIB,
        min=1,
        # What the helper takes: os_acc.privsep.images.
        max=_GIB,
        help="Bytes that an image may have. A larger one is refused before it is "
        "downloaded.",
    ),
    cfg.ListOpt(
        "disk_formats",
        default=["raw"],
        help="The disk formats (as Glance calls them) that images may have.",
    ),
    cfg.ListOpt(
        "container_formats",
        default=["bare"],
        help="The container formats (as Glance calls them) that images may have.",
    ),
    cfg.ListOpt(
        "file_formats",
        item_type=types.String(choices=["gbs", "xclbin", "raw"]),
        default=["gbs", "xclbin"],
        help="What the files may be: gbs (of OPAE), xclbin (of AMD/Xilinx), or "
        "raw, which is anything else. A raw file cannot say what it is built for: "
        "its property region_uuid is believed instead.",
    ),
    cfg.StrOpt(
        "instance_images",
        default="ignore",
        choices=[
            (
                "ignore",
                "an image that os_acc may not see, or that is gone, asks for "
                "nothing; the log says so",
            ),
            ("required", "the instance is not plugged"),
        ],
        help="What becomes of an instance with an FPGA that can be programmed, "
        "and whose own image may ask for a bitstream, but is not to be seen. The "
        "private images of tenants are seen by administrators alone: with other "
        "credentials, required keeps every instance with such an image, or "
        "without any that is left, from its FPGA.",
    ),
    cfg.StrOpt(
        "signature",
        default="off",
        choices=[
            ("off", "signatures are not looked at"),
            ("required", "an image without a good signature is refused"),
        ],
        help="Whether images have to be signed, with Glance's properties "
        "img_signature, img_signature_hash_method, img_signature_key_type and "
        "img_signature_certificate_uuid.",
    ),
    cfg.StrOpt(
        "certificates",
        default="/etc/os_acc/certificates",
        help="The directory with the certificates of those who may sign images, "
        "each in a file <certificate uuid>.pem, and of the authorities that "
        "issued these. Nobody but those who may decide what FPGAs are programmed "
        "with may be able to write there.",
    ),
)


class InvisibleImage(enum.Enum):
    """What it is that the image of an instance is not to be seen."""

    USUAL = "nothing to tell of"
    TOLD = "a warning"
    REFUSED = "an error"


@dataclasses.dataclass(frozen=True, slots=True)
class BitstreamSettings:
    """The options of this group as typed values.

    :ivar source: ``glance`` or ``directory``.
    :ivar directory: absolute path.
    :ivar cache_size: bytes.
    :ivar certificates: absolute path.
    :ivar unseen: what becomes of it that an instance's image is not to be seen.
    """

    source: str
    directory: str
    cache_size: int
    certificates: str
    unseen: InvisibleImage

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options.

        :raises InvalidConfiguration: a value cannot be read or is of no use.
        """
        register(conf)
        try:
            group = conf[GROUP.name]
            return cls(
                source=_choice(group, "source", "glance or directory"),
                directory=_directory(group, "directory"),
                cache_size=_bytes(group.cache_size),
                certificates=_directory(group, "certificates"),
                unseen=_unseen(group),
            )
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second time changes nothing."""
    # ConfigOpts copies a group, but not what is registered in it.
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTIONS, group=GROUP.name)


def _choice(group: cfg.ConfigOpts.GroupAttr, name: str, choices: str) -> str:
    # oslo.config reads an empty value as None.
    value: str | None = group[name]
    if not value:
        raise exception.InvalidConfiguration(
            f"[{GROUP.name}] {name} is empty", hint=f"it is {choices}"
        )
    return value


def _unseen(group: cfg.ConfigOpts.GroupAttr) -> InvisibleImage:
    if _choice(group, "instance_images", "ignore or required") == "required":
        return InvisibleImage.REFUSED
    # Who keeps bitstreams in a directory has the instances' images elsewhere.
    return InvisibleImage.USUAL if group.source == "directory" else InvisibleImage.TOLD


def _directory(group: cfg.ConfigOpts.GroupAttr, name: str) -> str:
    value: str | None = group[name]
    if not value or not os.path.isabs(value) or "\0" in value:
        raise exception.InvalidConfiguration(
            f"[{GROUP.name}] {name} is {exception.show(value)}, not an absolute path"
        )
    return value


def _bytes(value: int | None) -> int:
    if value is None:
        raise exception.InvalidConfiguration(
            f"[{GROUP.name}] cache_size is empty, not a number of bytes"
        )
    return value
