# SPDX-License-Identifier: Apache-2.0

"""A host with FPGA cards, and a cache of bitstreams beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from os_acc.host.dfl import DflCard, read_card
from os_acc.host.pci import read_function
from os_acc.objects.bitstream import Bitstream, Digest, Header, ImageFormat
from os_acc.objects.pci import PciAddress
from os_acc.objects.region import Region
from os_acc.privsep import binding, fpga, pci_functions, sriov
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.testing import TestHost, hosts
from os_acc.testing.dfl import payload
from os_acc.testing.hosts import DFL_INTERFACE
from tests.unit.bitstreams import image_examples

LEASE = "77777777-7777-4777-8777-777777777777"
CARD, SECOND, PORTED, FIXED, SILENT = (
    f"0000:{bus}:00.0" for bus in ("3b", "5e", "af", "b1", "d8")
)
VFS = ("0000:af:00.1", "0000:af:00.2")
WANTED = "10000000-2000-3000-4000-500000000000"
PAYLOAD = payload(WANTED, 10_001)
UNSIGNED = ("",) * 4
HEAD, TAIL = b"what comes before it", b"and after"


class FpgaHost(TestHost):
    """Cards, nodes and a cached image, for direct calls of privileged code."""

    def __init__(self, directory: Path, *, separate_helper: bool = False) -> None:
        spec = hosts.fpga_host()
        super().__init__(directory, spec, separate_helper=separate_helper)
        self.cache = directory / "state/bitstreams"
        self.cache.mkdir(parents=True)
        self.epoch = 0
        self.digest = self.add(HEAD + PAYLOAD + TAIL)

    def add(self, data: bytes, algorithm: str = "sha512") -> Digest:
        """Put an image into the cache, under its name."""
        digest = Digest(algorithm, hashlib.new(algorithm, data).hexdigest())
        (self.cache / digest.file_name).write_bytes(data)
        return digest

    def file(self) -> Path:
        """Return the path of the cached image."""
        return self.cache / self.digest.file_name

    def program(
        self, address: str = CARD, digest: Digest | None = None, **changed: object
    ) -> CallResult:
        """Call the entry point that programs a card with the image."""
        self.epoch += 1
        digest = digest or self.digest
        place = PciAddress.parse(address)
        arguments = {
            "parts": place.parts,
            "identity": changed.get("identity") or self.identity(address),
            "number": 0,
            "interface_id": DFL_INTERFACE,
            "digest": (digest.algorithm, digest.value),
            "offset": len(HEAD),
            "size": len(PAYLOAD),
            "epoch": self.epoch,
            "milliseconds": 60_000,
            "signature": UNSIGNED,
            **changed,
        }
        return CallResult(*fpga.program(*arguments.values()))

    def release(self, count: int, address: str = PORTED) -> CallResult:
        """Call the entry point that releases the first ports of a card."""
        self.epoch += 1
        place = PciAddress.parse(address)
        return CallResult(
            *fpga.set_ports(
                place.parts, self.identity(address), count, self.epoch, 60_000
            )
        )

    def assign(self, address: str = PORTED) -> CallResult:
        """Call the entry point so that it assigns all ports of a card to its PF."""
        return self.release(0, address)

    def take(self, address: str, milliseconds: int = 60_000) -> CallResult:
        """Call the entry point that takes a function from the host."""
        place = PciAddress.parse(address)
        targets = ((place.parts, self.identity(address)),)
        group = pci_functions.group(place)
        (answer,) = binding.take(group, targets, self.epoch, milliseconds, LEASE)
        return answer

    def give_back(self, address: str, driver: str) -> CallResult:
        """Call the entry point that gives a function back to a host driver."""
        place = PciAddress.parse(address)
        targets = ((place.parts, self.identity(address), driver, ""),)
        group = pci_functions.group(place)
        (answer,) = binding.give_back(group, targets, self.epoch, 60_000, False, LEASE)
        return answer

    def make_vfs(self, count: int, address: str = PORTED) -> None:
        """Create VFs, and bind them to dfl-pci."""
        place = PciAddress.parse(address)
        answer = sriov.set_num_vfs(
            place.parts, self.identity(address), count, self.epoch, 60_000
        )
        assert answer == CallResult(Outcome.OK)
        for vf in VFS[:count]:
            pci_functions.probe(PciAddress.parse(vf))

    def identity(self, address: str) -> tuple[int, ...]:
        function = read_function(self.kernel.root, PciAddress.parse(address))
        assert function is not None
        return function.identity.numbers

    def card(self, address: str = CARD) -> DflCard:
        """Return a card as unprivileged code reads it."""
        card = read_card(self.kernel.root, PciAddress.parse(address))
        assert card is not None
        return card

    def functions(self, address: str = CARD) -> list[str | None]:
        """Return the function of each port of a card; None: it cannot be read."""
        return [port.function_id for port in self.card(address).ports]

    def region(self, address: str = CARD, number: int = 0) -> Region:
        """Return a region of a card, as a plugin describes it."""
        card = self.card(address)
        function = read_function(self.kernel.root, card.address)
        port = card.port(number)
        assert function is not None
        return Region(
            card.address,
            function.identity,
            number,
            card.interface_id,
            port and port.function_id,
        )

    def bitstream(self) -> Bitstream:
        """Return the image as a verified bitstream."""
        size = self.file().stat().st_size
        hashed = {"hash_algo": self.digest.algorithm, "hash_value": self.digest.value}
        image = image_examples.image(properties={}, size=size, **hashed)
        header = Header(
            ImageFormat.GBS, len(HEAD), len(PAYLOAD), DFL_INTERFACE, (WANTED,)
        )
        return Bitstream(image, str(self.file()), size, header)

    def ioctls(self) -> list[str]:
        """Return the ioctls on device nodes, each with its outcome."""
        return [
            f"{write.text} {write.outcome}"
            for write in self.kernel.writes()
            if write.path.startswith("dev/")
        ]
