# SPDX-License-Identifier: Apache-2.0

"""Each row of the table of families, by ids and class code alone."""

import pytest

from os_acc.objects import qat
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity
from os_acc.plugins import pci
from tests.unit import pci_addresses

ACCELERATOR, NVME, ETHERNET, DISPLAY = 0x120000, 0x010802, 0x020000, 0x030200


def function(vendor: int, product: int, class_code: int) -> PciFunction:
    identity = PciIdentity(vendor, product, 0, 0, 0)
    address = PciAddress(0x10000, 1, 0, 0)
    return pci_addresses.function(address, identity=identity, class_code=class_code)


@pytest.mark.parametrize(
    ("vendor", "product", "class_code", "kind", "traits"),
    [
        (0x19E5, 0xD100, ACCELERATOR, "AICHIP", {"CUSTOM_ASCEND_310"}),
        (0x19E5, 0xD500, ACCELERATOR, "AICHIP", {"CUSTOM_ASCEND_310P"}),
        (0x19E5, 0xD801, ACCELERATOR, "AICHIP", {"CUSTOM_ASCEND_910"}),
        (0x19E5, 0xD802, ACCELERATOR, "AICHIP", {"CUSTOM_ASCEND_910B"}),
        (0x19E5, 0xD803, ACCELERATOR, "AICHIP", {"CUSTOM_ASCEND_910C"}),
        (0x1BD4, 0x0911, ACCELERATOR, "FPGA", {"CUSTOM_FPGA_INSPUR"}),
        (0x1BD4, 0x1001, NVME, "SSD", {"CUSTOM_SSD_INSPUR"}),
        (0x1D9B, 0x0400, 0x088000, "HPTS", {"CUSTOM_HPTS"}),
        (0x18D4, 0x1008, 0x088000, "HPTS", {"CUSTOM_HPTS"}),
        (0x1AD7, 0xA000, 0x088000, "HPTS", {"CUSTOM_HPTS"}),
        (0xAD5A, 0x0400, 0x088000, "HPTS", {"CUSTOM_HPTS"}),
        (0x1234, 0x5678, 0x111000, "HPTS", {"CUSTOM_HPTS"}),
    ],
)
def test_a_family_has_its_class_and_traits(vendor, product, class_code, kind, traits):
    found = pci.family_of(function(vendor, product, class_code))
    assert found.kind == kind
    assert traits <= found.traits
    assert all(each.startswith("CUSTOM_") for each in found.traits)


@pytest.mark.parametrize(
    ("vendor", "product", "class_code", "kind"),
    [
        (0x10EE, 0x5004, ACCELERATOR, "FPGA"),
        (0x10EE, 0x0100, ETHERNET, "FPGA"),
        (0x1172, 0x0001, 0xFF0000, "FPGA"),
        (0x8086, 0x0B30, ACCELERATOR, "FPGA"),
        (0x8086, 0x0B2B, ACCELERATOR, "FPGA"),
        (0x1C2C, 0x1000, ETHERNET, "FPGA"),
        (0x10DE, 0x2235, DISPLAY, "GPU"),
        (0x8086, 0x1572, ETHERNET, "NIC"),
        (0x15B3, 0x101D, 0x020700, "NIC"),
        (0x144D, 0xA824, NVME, "SSD"),
        (0x1234, 0x5678, ACCELERATOR, "AICHIP"),
        (0x1234, 0x5678, 0xFF0000, "PCI"),
        (0x1234, 0x5678, 0x110100, "PCI"),
        # Disks of other interfaces, and other functions of the vendors.
        (0x1BD4, 0x1001, 0x010700, "PCI"),
        (0x19E5, 0x0200, ETHERNET, "NIC"),
    ],
)
def test_other_devices_have_a_class_by_vendor_or_class_code(
    vendor, product, class_code, kind
):
    found = pci.family_of(function(vendor, product, class_code))
    assert (found.kind, found.traits) == (kind, frozenset())


def test_each_quickassist_pf_and_vf_is_known():
    """drivers/crypto/intel/qat: PF and VF of ten kinds."""
    assert len(qat.IDS) == 2 * len(qat.PFS) == 20
    for vendor, product in qat.IDS:
        assert pci.family_of(function(vendor, product, 0x0B4000)).kind == "QAT"
    assert {product for _, product in qat.CONFIGURABLE} == {
        *(0x4940, 0x4942, 0x4944, 0x4946, 0x4948)
    }


@pytest.mark.parametrize("class_code", [NVME, 0x010400, 0x010601, 0x010700])
@pytest.mark.parametrize("vendor", [0x144D, 0x1BD4, 0x10EE, 0x1172], ids=hex)
def test_mass_storage_keeps_the_data_of_a_guest(vendor, class_code):
    assert pci.family_of(function(vendor, 0x1001, class_code)).keeps_data
    assert not pci.family_of(function(vendor, 0x1001, DISPLAY)).keeps_data


@pytest.mark.parametrize(
    "class_code", [0x080501, 0x0C0400, 0x0C0330], ids=["SD", "FC", "USB"]
)
def test_a_controller_of_disks_keeps_the_data_of_a_guest(class_code):
    found = pci.family_of(function(0x1077, 0x2532, class_code))
    assert (found.kind, found.keeps_data) == ("PCI", True)


@pytest.mark.parametrize("class_code", [0x050100, 0x050200])
@pytest.mark.parametrize("vendor", [0x144D, 0x10EE, 0x1172], ids=hex)
def test_flash_and_cxl_memory_keep_the_data_of_a_guest(vendor, class_code):
    assert pci.family_of(function(vendor, 0x1001, class_code)).keeps_data
    assert not pci.family_of(function(vendor, 0x1001, 0x058000)).keeps_data
