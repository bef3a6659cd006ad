# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""The source of device profiles that an operator has chosen."""

from __future__ import annotations

import os

from oslo_config import cfg

from os_acc.profiles import folding, options
from os_acc.profiles.catalogue import Catalogue
from os_acc.profiles.cyborg import Cyborg
from os_acc.profiles.source import Source


class Profiles:
    """Device profiles, for those who are passed flavors.

    :raises InvalidConfiguration: an option cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._settings = options.Settings.load(conf)
        self.source: Source = (
            Cyborg(conf)
            if self._settings.source == "cyborg"
            else Catalogue(self._settings.catalogue)
        )

    def folded(self, specs: object, deadline: float) -> folding.Folded:
        """See :func:`os_acc.profiles.folding.folded`.

        Where nobody has said where profiles are, one that a flavor names may be
        between Nova and Cyborg, as it is without os_acc: it is left unread.
        """
        if (name := folding.named(specs)) and self._are_nowhere():
            return folding.Folded(specs, unread=name)
        return folding.folded(specs, self.source, deadline)

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
