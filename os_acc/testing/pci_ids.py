# SPDX-License-Identifier: Apache-2.0

"""Model names of simulated devices, as pciutils has them."""

from __future__ import annotations

import os
from typing import Final

from os_acc.host.pci_ids import PATHS

#: The lines of pci.ids for the devices in :mod:`os_acc.testing.hosts`.
TEXT: Final = """\
102b  Matrox Electronics Systems Ltd.
\t0538  MGA G200eH3
10de  NVIDIA Corporation
\t1aef  GA102 High Definition Audio Controller
\t2235  GA102GL [A40]
\t\t10de 145a  NVIDIA A40
10ee  Xilinx Corporation
\t5000  Alveo U200 XDMA Platform
\t505c  Alveo U55C
144d  Samsung Electronics Co Ltd
\ta824  NVMe SSD Controller PM173X
1b36  Red Hat, Inc.
\t0010  QEMU NVM Express Controller
8086  Intel Corporation
\t0b2b  PAC with Intel Stratix 10 SX FPGA [FPGA PAC D5005]
\t1592  Ethernet Controller E810-C for QSFP
\t1889  Ethernet Adaptive Virtual Function
\t37c8  C62x Chipset QuickAssist Technology
\t37c9  C62x Chipset QuickAssist Technology Virtual Function

# List of known device classes
C 12  Processing accelerators
\t00  Processing accelerators
"""


def install(root: str) -> None:
    """Install the names on a simulated host."""
    path = os.path.join(root, PATHS[0])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(TEXT)
