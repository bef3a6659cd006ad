# SPDX-License-Identifier: Apache-2.0

"""PCI addresses for hypothesis, and an example of a PCI function."""

from hypothesis import strategies as st

from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity

ADDRESSES = st.builds(
    PciAddress,
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 0xFF),
    st.integers(0, 0x1F),
    st.integers(0, 7),
)


def function(address: PciAddress, **values: object) -> PciFunction:
    """Return a function; by default, a bare network card without a driver."""
    usual: dict[str, object] = {
        "identity": PciIdentity(0x8086, 0x1572, 0, 0, 0),
        "class_code": 0x020000,
        "driver": None,
        "iommu_group": None,
        "numa_node": None,
        "reset_methods": (),
        "physfn": None,
        "total_vfs": 0,
        "vfs": (),
    }
    return PciFunction(address, **usual | values)
