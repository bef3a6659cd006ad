# SPDX-License-Identifier: Apache-2.0

"""Root's own configuration, which limits the requests of callers.

``/etc/os-acc/privileged.conf`` has the options and the syntax of the service's own
file. It applies only if root alone could have written it. It limits calls, but not
a user who may choose the helper's configuration files, because oslo.log runs code
that they name (``log_config_append``).
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence

from oslo_config import cfg
from oslo_log import log

from os_acc import privsep
from os_acc.bitstreams import options
from os_acc.objects import device_spec
from os_acc.objects.device import DeviceTags
from os_acc.objects.device_spec import DeviceSpec
from os_acc.objects.drivers import AUTO, NVIDIA, is_vfio_driver
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity, function_named
from os_acc.privsep import kernel, pci_functions
from os_acc.privsep.outcome import CallRefused, Outcome

LOG = log.getLogger(__name__)

#: Path below the root of :class:`.kernel.Kernel`.
PATH = ("etc", "os-acc", "privileged.conf")
#: The step of a refusal.
STEP = "privileged.conf"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DEVICES = cfg.MultiStrOpt("device_spec", default=[])
_NO_DEVICES = DeviceSpec()
_UNLIMITED = (
    "the service's user decides which devices of this host are bound and programmed"
)


class LimitMode(enum.StrEnum):
    """The effect of root's configuration on the callers of a helper."""

    #: The file applies.
    ENFORCED = "enforced"
    #: The file is invalid: only restoring is allowed.
    BROKEN = "broken"
    #: The file does not exist: callers choose devices freely.
    ABSENT = "absent"
    #: Users other than root may write to the file, so it is ignored.
    IGNORED = "ignored"


@dataclasses.dataclass(frozen=True, slots=True)
class RootConf:
    """Root's configuration, or its absence.

    :ivar why: the reason for the mode, if BROKEN or IGNORED.
    :ivar devices: the functions that callers may request.
    :ivar state_path: state directory of the service, with the cached images; None: as
        in the helper's own configuration.
    :ivar tools: directory of XRT's tools; None: likewise.
    :ivar certificates: of the trusted signers, a directory; None: no signature needed.
    """

    mode: LimitMode
    why: str = ""
    devices: DeviceSpec = _NO_DEVICES
    state_path: str | None = None
    tools: str | None = None
    certificates: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the callers are unlimited."""
        return self.mode in (LimitMode.ABSENT, LimitMode.IGNORED)

    def tags(self, address: PciAddress) -> DeviceTags | None:
        """Return the tags of a function; None if ``device_spec`` excludes it."""
        function = _function(address)
        if function is None:
            return None
        physical = function.physfn and _function(function.physfn)
        others = {physical.address: physical} if physical else {}
        return self.devices.match(function, self._netdevs(), others)

    def allows(self, *addresses: PciAddress) -> bool:
        """Return whether one of these functions is allowed."""
        return self.is_open or any(
            self.tags(address) is not None for address in addresses
        )

    def check_allows(self, *addresses: PciAddress) -> None:
        """Raise CallRefused, DENIED, unless one of these functions is allowed."""
        if not self.allows(*addresses):
            raise denied()

    def allows_with(self, address: PciAddress, others: Iterable[PciAddress]) -> bool:
        """Return whether a function is allowed in a call with others.

        The others of its slot and its IOMMU group allow it as well.
        """
        if self.is_open:
            return True
        # The groups of later functions have not been checked yet.
        group = pci_functions.group(address)
        card = [
            each
            for each in others
            if each != address
            and each.same_slot(address)
            and pci_functions.group(each) == group
            and not self.is_in_parts(each)
        ]
        return self.allows(address, *card)

    def denies_lease(self, address: PciAddress, others: Iterable[PciAddress]) -> bool:
        """Return whether no lease of a function may be in a call with others.

        A PF that is offered as VFs is itself no device: see
        :mod:`os_acc.inventory.eligibility`.
        """
        if self.is_open:
            return False
        return not self.allows_with(address, others) or self.is_in_parts(address)

    def is_in_parts(self, address: PciAddress) -> bool:
        """Return whether a function has VFs, or is to have parts."""
        if pci_functions.vfs(address):
            return True
        tags = self.tags(address)
        if tags is None or tags.mdev_types:
            return tags is not None
        return tags.num_vfs is not None

    def names_driver(self, address: PciAddress, driver: str) -> bool:
        """Return whether a function is allowed, and has this driver for a guest."""

        def is_named(tags: DeviceTags) -> bool:
            if tags.vgpu_type:
                return driver == NVIDIA
            if tags.vfio_driver == AUTO:
                return is_vfio_driver(driver)
            return driver == tags.vfio_driver

        return self.allows_if(address, is_named)

    def allows_vfs(self, address: PciAddress, count: int) -> bool:
        """Return whether a PF may have this many VFs."""
        return self.allows_if(address, lambda tags: tags.num_vfs == count)

    def allows_if(
        self, address: PciAddress, check: Callable[[DeviceTags], bool]
    ) -> bool:
        """Return whether a function is allowed, with tags that pass a check."""
        if self.is_open:
            return True
        tags = self.tags(address)
        return tags is not None and check(tags)

    def allows_mdev(self, kind: MdevType) -> bool:
        """Return whether mediated devices of a type may be created."""
        if self.is_open:
            return True
        function = kind.function
        tags = (
            self.tags(function) if function else self.devices.match_parent(kind.parent)
        )
        return tags is not None and kind.name in tags.mdev_types

    def _netdevs(self) -> Mapping[str, PciAddress]:
        found = ((name, _behind(name)) for name in self.devices.interfaces)
        return {name: address for name, address in found if address}


@privsep.base.entrypoint
def limits() -> tuple[str, str, str]:
    """Return how callers are limited: mode, path, reason."""
    conf = current()
    return (str(conf.mode), kernel.current.path(*PATH), conf.why)


def denied(observed: object = "") -> CallRefused:
    """Return the refusal of a call that root's configuration denies."""
    return CallRefused(Outcome.DENIED, errno.EPERM, STEP, str(observed))


_last: tuple[tuple[object, ...], RootConf] = ((), RootConf(LimitMode.ABSENT))


def current() -> RootConf:
    """Return the configuration; read it again if a file or directory changed."""
    global _last
    last_key, conf = _last
    parts, missing = _read_parts()
    foreign = foreign_copies()
    key = (kernel.current.root, *(each for _, each in parts), missing, foreign)
    if key != last_key:
        conf = _load(parts, missing)
        if foreign:
            conf = RootConf(LimitMode.BROKEN, foreign)
        _log(conf)
        _last = (key, conf)
    return conf


def last_read() -> RootConf:
    """Return the last configuration read; a worker's child reads no other."""
    return _last[1]


_Seen = tuple[int, int, int, int, int, int]


def _read_parts() -> tuple[list[tuple[str, _Seen]], int]:
    """Return the path's parts, and the number of the error that ended the search."""
    found: list[tuple[str, _Seen]] = []
    for depth in range(len(PATH) + 1):
        path = kernel.current.path(*PATH[:depth])
        try:
            seen = os.lstat(path)
        except OSError as error:
            return found, error.errno or errno.EIO
        # Directories change whenever a file is added or removed.
        times = (seen.st_mtime_ns, seen.st_size) if depth == len(PATH) else (0, 0)
        place = seen.st_dev, seen.st_ino, seen.st_mode, seen.st_uid
        found.append((path, (*place, *times)))
    return found, 0


def _load(parts: Sequence[tuple[str, _Seen]], missing: int) -> RootConf:
    if missing in (errno.ENOENT, errno.ENOTDIR):
        return RootConf(LimitMode.ABSENT)
    if missing:
        return RootConf(LimitMode.BROKEN, os.strerror(missing))
    for path, (_, _, mode, owner, _, _) in parts:
        is_file = path == parts[-1][0]
        if (why := not_roots(path, mode, owner, is_file=is_file)) is not None:
            return RootConf(LimitMode.IGNORED, why)
    return read(parts[-1][0])


def foreign_copies() -> str | None:
    """Return why users other than root may have put files among the copies of records.

    No copy counts then: a forged one would permit the erasure of a drive.
    """
    path = kernel.current.path(kernel.COPIES)
    try:
        seen = os.stat(path)
    except OSError:
        # It is not made yet, or no copy can be read either.
        return None
    why = not_roots(path, seen.st_mode, seen.st_uid, is_file=False)
    return why and f"{why}: make it root's with its files, if you trust them"


def not_roots(path: str, mode: int, owner: int, *, is_file: bool) -> str | None:
    """Return why users other than root may have written a file or directory."""
    # In tests, helpers run as an ordinary user on a tree of their own.
    if owner not in (0, os.geteuid()):
        return f"{path} belongs to user {owner}"
    if mode & _OTHERS_MAY_WRITE:
        return f"users other than root can write {path} (mode {stat.S_IMODE(mode):04o})"
    is_kind = stat.S_ISREG if is_file else stat.S_ISDIR
    if not is_kind(mode):
        return f"{path} is not a {'file' if is_file else 'directory'}"
    return None


def read(path: str) -> RootConf:
    """Read a file as root's configuration; its owner and mode are not checked.

    :returns: BROKEN, with the reason, if it is invalid or cannot be read.
    """
    conf = cfg.ConfigOpts()
    conf.register_opts([_DEVICES, options.STATE_PATH], group=options.STATE_GROUP)
    conf.register_opt(options.XRT_TOOLS, group=options.XRT_GROUP)
    options.register(conf)
    try:
        conf([], default_config_files=[path], default_config_dirs=[], use_env=False)
        own = conf[options.STATE_GROUP]
        return RootConf(
            LimitMode.ENFORCED,
            devices=device_spec.parse(tuple(own.device_spec or ())),
            state_path=str(own.state_path or ""),
            tools=str(conf[options.XRT_GROUP].tools or ""),
            certificates=_certificates(conf[options.GROUP.name]),
        )
    except (cfg.Error, ValueError) as error:
        # ValueError: undecodable bytes, or a value of another type.
        return RootConf(LimitMode.BROKEN, " ".join(str(error).split()))


def absolute_path(found: str | None, option: cfg.Opt, group: str, step: str) -> str:
    """Return a directory of root's configuration, or of the helper's own.

    :param found: in root's configuration; None: take the helper's own.
    :raises CallRefused: EINVAL at this step: it is no absolute path.
    """
    if found is None:
        cfg.CONF.register_opt(option, group=group)
        try:
            found = str(cfg.CONF[group][option.name] or "")
        except cfg.Error as error:
            raise CallRefused(Outcome.REFUSED, errno.EINVAL, step, group) from error
    if not os.path.isabs(found):
        raise CallRefused(Outcome.REFUSED, errno.EINVAL, step, found)
    return found


def _certificates(group: cfg.ConfigOpts.GroupAttr) -> str | None:
    if group.signature == "off":
        return None
    found = str(group.certificates or "")
    if group.signature != "required" or not os.path.isabs(found):
        raise ValueError("[os_acc_bitstreams] signature or certificates is empty")
    return kernel.current.path(found.lstrip("/"))


def not_roots_tree(directory: str) -> str | None:
    """Return why users other than root may have written the files of a directory.

    :param directory: below the root of :class:`.kernel.Kernel`.
    """
    names = os.path.relpath(directory, kernel.current.root).split(os.sep)
    parents = [kernel.current.path(*names[:depth]) for depth in range(len(names) + 1)]
    try:
        files = [os.path.join(directory, name) for name in os.listdir(directory)]
        for path in (*parents, *files):
            seen = os.lstat(path)
            is_file = path in files
            why = not_roots(path, seen.st_mode, seen.st_uid, is_file=is_file)
            if why is not None:
                return why
    except OSError as error:
        return f"cannot read {directory}: {error.strerror}"
    return None


def _log(conf: RootConf) -> None:
    path = kernel.current.path(*PATH)
    match conf.mode:
        case LimitMode.ABSENT:
            LOG.warning("%s does not exist: %s", path, _UNLIMITED)
        case LimitMode.IGNORED:
            LOG.warning("%s is IGNORED, because %s: %s", path, conf.why, _UNLIMITED)
        case LimitMode.BROKEN:
            LOG.error(
                "no device is bound or programmed, because %s is invalid: %s",
                path,
                conf.why,
            )
        case LimitMode.ENFORCED:
            LOG.info("%s limits which devices are bound and programmed", path)


def _function(address: PciAddress) -> PciFunction | None:
    numbers = pci_functions.identity(address)
    if numbers is None:
        return None
    vendor, product, subvendor, subproduct, revision = numbers
    return PciFunction(
        address=address,
        identity=PciIdentity(vendor, product, subvendor, subproduct, revision),
        class_code=0,
        driver=None,
        iommu_group=None,
        numa_node=None,
        reset_methods=(),
        physfn=pci_functions.physical_function(address),
        total_vfs=pci_functions.total_vfs(address),
        vfs=(),
    )


def _behind(interface: str) -> PciAddress | None:
    # The name of one directory, and no path.
    if interface in ("", ".", "..") or "/" in interface or "\0" in interface:
        return None
    link = kernel.current.path("sys/class/net", interface, "device")
    for part in reversed(os.path.realpath(link).split("/")):
        if (address := function_named(part)) is not None:
            return address
    return None
