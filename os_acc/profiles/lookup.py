# SPDX-License-Identifier: Apache-2.0

"""The configured source of device profiles."""

from __future__ import annotations

import os

from oslo_config import cfg

from os_acc.profiles import expansion, options
from os_acc.profiles.cyborg import Cyborg
from os_acc.profiles.files import ProfileFiles
from os_acc.profiles.options import ProfileSource


class ProfileLookup:
    """Look up the device profiles of flavors.

    :raises InvalidConfiguration: an option is invalid.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = options.ProfileSettings.load(conf)
        self.source: ProfileSource = (
            Cyborg(conf)
            if self._settings.source == "cyborg"
            else ProfileFiles(self._settings.catalogue)
        )

    def expanded(self, specs: object, deadline: float) -> expansion.ExpandedFlavor:
        """See :func:`os_acc.profiles.expansion.expanded`.

        Without a configured source, the profile is left to Nova and Cyborg, as it
        is without os_acc: its name is returned as ``unreadable``.
        """
        if (name := expansion.named(specs)) and self._are_nowhere():
            return expansion.ExpandedFlavor(specs, unreadable=name)
        return expansion.expanded(specs, self.source, deadline)

    def _are_nowhere(self) -> bool:
        """Return whether no source is configured, and the default has no file."""
        if self._settings.source != "catalogue" or self._settings.is_set:
            return False
        try:
            # lstat(): a dangling link is a configured source.
            os.lstat(self._settings.catalogue)
        except FileNotFoundError:
            return True
        except OSError:
            # Reading the file reports the error.
            return False
        return False
