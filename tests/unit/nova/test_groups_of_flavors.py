# SPDX-License-Identifier: Apache-2.0

"""The scheduler reads the policy and the function of each group with accelerators."""

import pytest

from os_acc.nova import conversion
from os_acc.objects.numa import NUMAPolicy

GPU = "resources{}:CUSTOM_ACCELERATOR_GPU"
ONE = {GPU.format(1): "1"}
FUNCTION = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
OF_FLAVOR = "hw:pci_numa_affinity_policy"


@pytest.mark.parametrize(
    ("specs", "image", "expected"),
    [
        ({}, None, NUMAPolicy.LEGACY),
        ({}, "socket", NUMAPolicy.SOCKET),
        ({OF_FLAVOR: "preferred"}, None, NUMAPolicy.PREFERRED),
        ({OF_FLAVOR: "preferred"}, "preferred", NUMAPolicy.PREFERRED),
        (
            {OF_FLAVOR: "preferred", "accel1:numa_policy": "required"},
            None,
            NUMAPolicy.REQUIRED,
        ),
    ],
)
def test_the_group_decides_before_the_flavor_and_the_image(specs, image, expected):
    found = conversion.groups_of(ONE | specs, image, NUMAPolicy.LEGACY)
    assert found["1"].policy is expected


def test_each_group_has_its_classes_and_function():
    specs = ONE | {
        "resources2:FPGA": "1",
        "resources2:CUSTOM_PCI_8086_1572": "1",
        "accel2:function_id": FUNCTION.upper(),
        "resources3:VGPU": "1",
        "resources:VCPU": "2",
        "group_policy": "none",
    }
    found = conversion.groups_of(specs, None, NUMAPolicy.REQUIRED)
    assert {
        suffix: (each.classes, each.function) for suffix, each in found.items()
    } == {
        "1": ({"CUSTOM_ACCELERATOR_GPU"}, ""),
        "2": ({"FPGA"}, FUNCTION),
    }


@pytest.mark.parametrize(
    ("more", "image"),
    [
        ({"accel:device_profile": "of-cyborg"}, None),
        ({"accel1:numa_policy": "near"}, None),
        ({OF_FLAVOR: "near"}, None),
        ({}, "near"),
    ],
)
def test_groups_of_others_and_faulty_ones_are_left_to_compute(more, image):
    assert conversion.groups_of(ONE | more, image, NUMAPolicy.LEGACY) == {}
