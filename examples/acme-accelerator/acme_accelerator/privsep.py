# SPDX-License-Identifier: Apache-2.0

"""The privileged step of M1 cards. Root imports this module and os_acc alone."""

from __future__ import annotations

import errno

from os_acc import privsep

context = privsep.Context("acme_accelerator.privsep.context", "acme_m1_privileged", [])

#: The modes of a card, by the number that a caller passes.
MODES = ("host", "guest")
_ATTRIBUTE = "acme_mode"


@context.step
def set_mode(target: privsep.StepTarget, number: int) -> str:
    """Set the mode of each card of the lease; return that of the first one.

    :param number: the index of one of :data:`MODES`.
    """
    if not 0 <= number < len(MODES):
        raise OSError(errno.EINVAL, "no such mode", _ATTRIBUTE)
    for function in target.functions:
        target.set(function, _ATTRIBUTE, MODES[number])
    return target.read(target.functions[0], _ATTRIBUTE)
