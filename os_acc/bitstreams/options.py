# SPDX-License-Identifier: Apache-2.0

"""Options of bitstreams: source, policy and cache."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from typing import Any, Self

from oslo_config import cfg, types

from os_acc import exception
from os_acc.objects.bitstream import ImageFormat

GROUP = cfg.OptGroup(
    "os_acc_bitstreams",
    title="Bitstreams of os_acc",
    help="Source of the images that FPGAs are programmed with, the policy on "
    "them, and their cache on this host.",
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
                "a directory of this host, with a file for each image and its "
                "properties in JSON beside it",
            ),
        ],
        help="Source of bitstream images.",
    ),
    cfg.StrOpt(
        "directory",
        default="/srv/os_acc/images",
        help="Directory of images, if source is directory. Only users who may "
        "decide what FPGAs are programmed with may have write access.",
    ),
    cfg.IntOpt(
        "cache_size",
        default=10 * _GIB,
        min=1,
        help="Size limit in bytes of the images below [os_acc] state_path. When "
        "space is needed, the least recently used images are evicted first, but "
        "none that is in use.",
    ),
    cfg.ListOpt(
        "allowed_projects",
        default=[],
        help="IDs of projects whose images may be programmed with any "
        "visibility. Users who can upload images to these projects decide what "
        "FPGAs are programmed with.",
    ),
    cfg.BoolOpt(
        "allow_public",
        default=True,
        help="Allow public images of other projects. In Glance, only administrators "
        "can publish an image, unless the policy publicize_image has been changed. "
        "Community and shared images do not count as public.",
    ),
    cfg.IntOpt(
        "max_image_size",
        default=_GIB,
        min=1,
        # The helper's limit: os_acc.privsep.images.
        max=_GIB,
        help="Size limit of an image in bytes. A larger one is rejected before it is "
        "downloaded.",
    ),
    cfg.ListOpt(
        "disk_formats",
        default=["raw"],
        help="Allowed disk formats of images, as defined by Glance.",
    ),
    cfg.ListOpt(
        "container_formats",
        default=["bare"],
        help="Allowed container formats of images, as defined by Glance.",
    ),
    cfg.ListOpt(
        "file_formats",
        item_type=types.String(choices=["gbs", "xclbin", "raw"]),
        default=["gbs", "xclbin"],
        help="Allowed formats of files: gbs (of OPAE), xclbin (of AMD/Xilinx), and "
        "raw, which is any other. A raw file does not state its region: its "
        "property region_uuid is trusted instead.",
    ),
    cfg.StrOpt(
        "instance_images",
        default="ignore",
        choices=[
            (
                "ignore",
                "an image that is gone, or not visible to os_acc, requests "
                "nothing; this is logged",
            ),
            ("required", "the plug fails"),
        ],
        help="Action for an instance with a programmable FPGA whose own image, which "
        "may request a bitstream, is not visible. Only administrators see the "
        "private images of tenants: with other credentials, required rejects every "
        "instance with such an image, or whose image has been deleted.",
    ),
    cfg.BoolOpt(
        "reprogram_at_release",
        default=False,
        help="When a guest that could program its FPGA is unplugged, program the "
        "region again with the image with which os_acc last programmed it, so that its "
        "function is offered to flavors that require it. A failure is logged, and does "
        "not fail the unplug; the service retries it if its cause can pass. The "
        "service does the same for a free region that a failed programming has left "
        "unverified.",
    ),
    cfg.StrOpt(
        "signature",
        default="off",
        choices=[
            ("off", "signatures are not checked"),
            ("required", "an image without a valid signature is rejected"),
        ],
        help="Verification of image signatures, in Glance's properties "
        "img_signature, img_signature_hash_method, img_signature_key_type and "
        "img_signature_certificate_uuid.",
    ),
    cfg.StrOpt(
        "certificates",
        default="/etc/os_acc/certificates",
        help="Directory of the certificates of trusted signers, each in a file "
        "<certificate uuid>.pem, and of the authorities that issued them. Only users "
        "who may decide what FPGAs are programmed with may have write access.",
    ),
)

# The privileged helper also reads these options, and no other one of the service: by
# them it finds the cached bitstreams, and the tools that load them.

#: The group of :data:`STATE_PATH`.
STATE_GROUP = "os_acc"
#: The group of :data:`XRT_TOOLS`; the plugin's entry point is ``xrt``.
XRT_GROUP = "os_acc_xrt"

STATE_PATH = cfg.StrOpt(
    "state_path",
    default="/var/lib/os_acc",
    help="Directory of the leases, the journal, the locks and the cached "
    "bitstreams. It must be on a local file system that survives a reboot, "
    "and belong to the user that runs nova-compute.",
)

XRT_TOOLS = cfg.StrOpt(
    "tools",
    default="/opt/xilinx/xrt/bin",
    help="Directory of the XRT tools xbmgmt and xbutil. The tools run as root: "
    "the directory and the tools must belong to root, and no other user may "
    "have write permission.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class BitstreamSettings:
    """The options of this group as typed values.

    :ivar source: ``glance`` or ``directory``.
    :ivar directory: absolute path.
    :ivar cache_size: bytes.
    :ivar projects: IDs of the projects whose images may be programmed.
    :ivar public: whether public images of other projects may be programmed.
    :ivar max_size: the largest size of an image in bytes.
    :ivar signed: whether signatures are required.
    :ivar certificates: absolute path of the directory of trusted certificates.
    :ivar unseen: the level at which an instance's image is logged that is not
        visible; None: it is an error.
    :ivar reprogram_at_release: whether a release programs the recorded image again.
    """

    source: str
    directory: str
    cache_size: int
    projects: frozenset[str]
    public: bool
    max_size: int
    disk_formats: frozenset[str]
    container_formats: frozenset[str]
    file_formats: frozenset[ImageFormat]
    signed: bool
    certificates: str
    unseen: int | None
    reprogram_at_release: bool

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Read the options.

        :raises InvalidConfiguration: a value is invalid.
        """
        register(conf)
        try:
            group = conf[GROUP.name]
            return cls(
                source=_not_empty(group, "source"),
                directory=_directory(group, "directory"),
                cache_size=_not_empty(group, "cache_size"),
                # Without '', which would match an image without an owner.
                projects=frozenset(filter(None, group.allowed_projects or ())),
                public=_not_empty(group, "allow_public"),
                max_size=_not_empty(group, "max_image_size"),
                disk_formats=frozenset(group.disk_formats or ()),
                container_formats=frozenset(group.container_formats or ()),
                file_formats=frozenset(map(ImageFormat, group.file_formats or ())),
                signed=_not_empty(group, "signature") == "required",
                certificates=_directory(group, "certificates"),
                unseen=_unseen(group),
                # oslo.config reads an empty value as None.
                reprogram_at_release=bool(group.reprogram_at_release),
            )
        except cfg.Error as error:
            raise exception.InvalidConfiguration(str(error)) from error


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; registering twice is harmless."""
    # ConfigOpts does not copy a group's contents.
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTIONS, group=GROUP.name)


def _not_empty(group: cfg.ConfigOpts.GroupAttr, name: str) -> Any:
    """Return the value of an option.

    :raises InvalidConfiguration: it is empty, which oslo.config reads as None.
    """
    if group[name] in (None, ""):
        raise exception.InvalidConfiguration(f"[{GROUP.name}] {name} is empty")
    return group[name]


def _unseen(group: cfg.ConfigOpts.GroupAttr) -> int | None:
    if _not_empty(group, "instance_images") == "required":
        return None
    # With bitstreams in a directory, the instances' images are never visible.
    return logging.DEBUG if group.source == "directory" else logging.WARNING


def _directory(group: cfg.ConfigOpts.GroupAttr, name: str) -> str:
    value: str | None = group[name]
    if not value or not os.path.isabs(value) or "\0" in value:
        raise exception.InvalidConfiguration(
            f"[{GROUP.name}] {name} is {exception.show(value)}, not an absolute path"
        )
    return value
