# SPDX-License-Identifier: Apache-2.0

"""The source of device profiles that an operator has chosen."""

from __future__ import annotations

import os

from oslo_config import cfg

from os_acc.profiles import expansion, options
from os_acc.profiles.cyborg import Cyborg
from os_acc.profiles.files import ProfileFiles
from os_acc.profiles.options import ProfileSource


class ProfileLookup:
    """Device profiles, for those who are passed flavors.

    :raises InvalidConfiguration: an option cannot be used.
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

        Where nobody has said where profiles are, one that a flavor names may be
        between Nova and Cyborg, as it is without os_acc: it is left unread.
        """
        if (name := expansion.named(specs)) and self._are_nowhere():
            return expansion.ExpandedFlavor(specs, unread=name)
        return expansion.expanded(specs, self.source, deadline)

    def _are_nowhere(self) -> bool:
        """Whether nobody has said where profiles are, nor put any there."""
        if self._settings.source != "catalogue" or self._settings.is_set:
            return False
        try:
            # A link that leads nowhere was made by somebody.
            os.lstat(self._settings.catalogue)
        except FileNotFoundError:
            return True
        except OSError:
            # Reading it tells why that cannot be done.
            return False
        return False
