# SPDX-License-Identifier: Apache-2.0

"""The simulated host of ``--simulated DIR``, instead of the host itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Self

from os_acc import exception
from os_acc.cmd import identity

_MAKE = "make a host in a new directory: os-acc demo --keep DIR"


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedHost:
    """A directory that ``os-acc demo --keep`` has made.

    :ivar root: parent directory of the host's ``/sys``, ``/proc`` and ``/dev``.
    """

    directory: str
    root: str
    config_file: str

    @classmethod
    def enter(cls, directory: str) -> Self:
        """Return the host in a directory, ready for a command.

        Root becomes the owner of the directory: its configuration names the command
        that starts the helpers.

        :raises InvalidInput: the directory has no simulated host.
        """
        root = os.path.join(directory, "host")
        config_file = os.path.join(directory, "os-acc.conf")
        if not os.path.isdir(os.path.join(root, "sys")) or not os.path.isfile(
            config_file
        ):
            raise exception.InvalidInput(
                f"{directory} has no simulated host", hint=_MAKE
            )
        identity.become_owner(directory)
        # Commands for the real host do not import the simulation.
        from os_acc.testing.kernel import FakeKernel

        try:
            # Completes a change of the tree that a killed process has begun.
            FakeKernel(root)
        except OSError as error:
            raise exception.InvalidInput(
                f"cannot use the simulated host in {directory}: {error.strerror}",
                hint="run the command as the owner of the directory",
            ) from error
        return cls(directory, root, config_file)

    def check(self, state_path: str) -> None:
        """Check that the configured state is that of this host.

        :raises InvalidConfiguration: the directory is a copy, or was moved.
        """
        if os.path.dirname(os.path.realpath(state_path)) != os.path.realpath(
            self.directory
        ):
            raise exception.InvalidConfiguration(
                f"{self.config_file} is of another simulated host: its state_path is "
                f"{state_path}",
                hint=f"a simulated host cannot be moved or copied; {_MAKE}",
            )

    def helpers(self) -> contextlib.AbstractContextManager[None]:
        """Keep all helpers on this host, also those that its configuration omits.

        A helper that is started as on a real host would reach the real kernel, as root.
        """
        from os_acc.testing import helper

        command = helper.command(self.root, self.config_file)
        return helper.helpers_started_by(command)
