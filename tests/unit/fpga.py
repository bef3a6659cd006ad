# SPDX-License-Identifier: Apache-2.0

"""A fake host with FPGA cards, and a directory of images for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from unittest import mock

from oslo_config import cfg

from os_acc.bitstreams import options
from os_acc.bitstreams.options import DIRECTORY
from os_acc.privsep import images
from os_acc.testing import HostSpec, bitstreams, hosts
from os_acc.testing.dfl_specs import payload
from tests.unit.bench import Bench, instance, privileged_here, request

CARD, OTHER_CARD = "0000:3b:00.0", "0000:af:00.0"
VF, OTHER_VF = "0000:3b:00.1", "0000:3b:00.2"
VFS = '{"address": "*:*:*.*", "num_vfs": 2}'
POWER_ON, INTERFACE = hosts.DFL_FUNCTION, hosts.DFL_INTERFACE
GZIP = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
CRYPTO = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def two_cards() -> HostSpec:
    """Two cards on the DFL driver, each of them one region."""
    return HostSpec((hosts.dfl("0000:3b", 0), hosts.dfl("0000:af", 1)))


class FpgaBench(Bench):
    """Images come from a directory."""

    source = "directory"

    def __init__(self, place: Path, spec: HostSpec, **more: object) -> None:
        self.shelf = place / "images"
        self.shelf.mkdir()
        super().__init__(place, spec, **more)

    def config(self, **more: object) -> cfg.ConfigOpts:
        config = super().config(**more)
        options.register(config)
        group = options.GROUP.name
        config.set_override("source", self.source, group=group)
        config.set_override("directory", str(self.shelf), group=group)
        return config

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Privileged code finds this kernel, and the cache of this service."""
        cache = images.Images(str(Path(self.state_path, DIRECTORY)))
        with self.kernel.installed(), mock.patch.object(images, "current", cache):
            yield

    @contextlib.contextmanager
    def working(self) -> Iterator[Self]:
        """Privileged code finds this kernel; all that hangs ends with this."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(privileged_here())
            stack.enter_context(self.installed())
            stack.callback(self.end)
            yield self

    def upload(
        self,
        name: str = "gzip",
        function: str = GZIP,
        *,
        interface: str = INTERFACE,
        says: str | None = None,
        **fields: Any,
    ) -> str:
        """Put an image on the shelf; its id.

        :param function: what the hardware holds once it is programmed.
        :param says: the function that its head says; the same, by default.
        """
        content = bitstreams.gbs(interface, says or function, payload(function))
        told = {"accel:function_id": says or function, "accel:function_name": name}
        return self.put(name, content, **told | fields)

    def put(self, name: str, content: bytes, **fields: Any) -> str:
        """Put a file on the shelf as an image; its id."""
        image_id = str(uuid.uuid4())
        told = {
            "id": image_id,
            "name": name,
            "tags": ["FPGA"],
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
        }
        (self.shelf / name).write_bytes(content)
        told = {key: value for key, value in (told | fields).items() if value}
        (self.shelf / f"{name}.json").write_text(json.dumps(told))
        return image_id

    def ask(self, number: int, address: str = CARD, /, **wish: str) -> list[Any]:
        """Plug one function, programmed with this."""
        selected, specs = request(self.provider(address))
        specs |= {f"accel1:{name}": value for name, value in wish.items()}
        return self.manager.plug(instance(number), selected, specs)

    def held(self, address: str = CARD) -> str:
        """What the only port of a card really holds."""
        (function,) = self.kernel.held_by_hardware(address)
        return function

    def programmings(self) -> list[str]:
        """How each programming ended that reached the driver."""
        return [
            write.outcome
            for write in self.kernel.writes()
            if write.text.startswith("DFL_FPGA_FME_PORT_PR ")
        ]


def traits(bench: FpgaBench, address: str = CARD) -> frozenset[str]:
    """What Placement is told of a card."""
    return bench.provider(address).device.traits


def function_trait(function: str) -> str:
    """The trait of a region that holds this function."""
    return f"CUSTOM_FPGA_INTEL_FUNCTION_{function.upper().replace('-', '_')}"


def cyborgs_trait(function: str) -> str:
    """The same, as Cyborg calls it."""
    return f"CUSTOM_FPGA_FUNCTION_ID_INTEL_{function.upper().replace('-', '')}"


def region_trait(interface: str) -> str:
    """The trait of a region that takes bitstreams of this interface."""
    return f"CUSTOM_FPGA_INTEL_REGION_{interface.upper().replace('-', '_')}"


def is_unknown(bench: FpgaBench) -> bool:
    """Whether a region of the host is in doubt."""
    return bool(bench.manager.store.standing().unknown_regions)
