# SPDX-License-Identifier: Apache-2.0

"""A plugin whose import does not return while the test wants it so."""

from tests.unit.acme import Acme, NeverReturns

__all__ = ["Acme"]

NeverReturns.gate.wait()
