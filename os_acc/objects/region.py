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

"""The parts of FPGAs that are programmed as one."""

from __future__ import annotations

import dataclasses
from typing import Final

from os_acc.objects.pci import PciAddress, PciIdentity


@dataclasses.dataclass(frozen=True, slots=True)
class Region:
    """A part of an FPGA which is programmed without disturbing the others.

    :ivar card: the function through which the host programs it.
    :ivar identity: of that function.
    :ivar number: which region of the card it is (DFL: the number of its port;
        XRT: that of the user function in the card's slot).
    :ivar interface_id: canonical UUID of what a bitstream for it has to be
        built for (DFL: ``compat_id``; XRT: ``interface_uuids``); None: it
        cannot be programmed.
    :ivar function_id: canonical UUID of what it holds (DFL: ``afu_id``; XRT:
        ``xclbinuuid``); None: nothing is known of it.
    """

    card: PciAddress
    identity: PciIdentity
    number: int
    interface_id: str | None
    function_id: str | None

    @property
    def key(self) -> str:
        """Its name in the store: that of its place.

        Cards whose serial number nobody has programmed all have the same. One
        that is moved has been without power, and holds nothing of before.
        """
        product = f"{self.identity.vendor:04x}_{self.identity.product:04x}"
        return f"{product}_{self.card}_{self.number}"

    def __str__(self) -> str:
        return f"region {self.number} of {self.card}"


@dataclasses.dataclass(frozen=True, slots=True)
class Programming:
    """What the region behind a lease has to hold for as long as it lasts.

    :ivar region: as it was when the lease was made ready.
    :ivar function_id: canonical UUID of what the guest finds in it; None:
        nothing tells.
    :ivar image_id: of the image that it is programmed with; '' where the
        guest takes what it finds.
    :ivar hash_algo: of that image, as :class:`os_acc.objects.image.Image`
        has it: another file under the same id is another bitstream.
    :ivar hash_value: hexadecimal.
    """

    region: Region
    function_id: str | None
    image_id: str = ""
    hash_algo: str = ""
    hash_value: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Doubts:
    """Of which regions nobody knows what they hold.

    :ivar keys: those whose programming has begun and not been proved.
    :ivar proved: None: only these. Otherwise what was recorded of them is
        damaged, so that every region is in doubt but those that were proved
        since.
    """

    keys: frozenset[str] = frozenset()
    proved: frozenset[str] | None = None

    def __contains__(self, region: Region) -> bool:
        if region.key in self.keys:
            return True
        if self.proved is None or region.key in self.proved:
            return False
        # What cannot be programmed has not been left half-way.
        return region.interface_id is not None

    def __bool__(self) -> bool:
        return bool(self.keys) or self.proved is not None


NO_DOUBTS: Final = Doubts()
