# SPDX-License-Identifier: Apache-2.0

"""The state and the services of a QuickAssist PF.

Documentation/ABI/testing/sysfs-driver-qat. Any user can read both attributes, also
while guests have the VFs.
"""

from __future__ import annotations

import dataclasses
import os

from os_acc.host.attributes import read_text
from os_acc.host.pci import DEVICES
from os_acc.objects import qat
from os_acc.objects.pci import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class QatState:
    """The attributes of a PF that its driver shows.

    :ivar state: ``up`` or ``down``; '' if there is no such attribute.
    :ivar services: the text of ``cfg_services``; '' likewise.
    """

    state: str = ""
    services: str = ""

    @property
    def known_services(self) -> qat.QatServices:
        """The services that this version knows; a later kernel may have more."""
        names = {each.value for each in qat.QatService}
        parts = names.intersection(self.services.split(";"))
        return frozenset(map(qat.QatService, parts))


def read_state(root: str, pf: PciAddress) -> QatState:
    """Return the state of a PF, as far as its driver shows it.

    Only 4xxx and later devices have the attributes, since Linux 6.0.

    :raises HostStepFailed: an attribute exists and cannot be read.
    """
    directory = os.path.join(root, DEVICES, str(pf), qat.DIRECTORY)
    return QatState(
        read_text(os.path.join(directory, "state")) or "",
        read_text(os.path.join(directory, "cfg_services")) or "",
    )
