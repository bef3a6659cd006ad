# SPDX-License-Identifier: Apache-2.0

"""A plugin whose import hangs until the test opens a gate."""

from tests.unit.acme import Acme, NeverReturns

__all__ = ["Acme"]

NeverReturns.wait()
