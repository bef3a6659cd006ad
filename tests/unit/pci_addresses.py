# SPDX-License-Identifier: Apache-2.0

"""Strategies of hypothesis for PCI addresses."""

from hypothesis import strategies as st

from os_acc.objects.pci import PciAddress

ADDRESSES = st.builds(
    PciAddress,
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)
