# SPDX-License-Identifier: Apache-2.0

"""A host with cards of a simulated kernel and images of a real Glance."""

from __future__ import annotations

from pathlib import Path

from os_acc.testing import HostSpec, TestHost
from tests.functional.openstack.cloud import Cloud


def cloud_host(
    place: Path, spec: HostSpec, cloud: Cloud, **bitstreams: object
) -> TestHost:
    """Build such a host.

    :param bitstreams: options of ``[os_acc_bitstreams]``.
    """
    groups = {"os_acc_bitstreams": {"source": "glance", **bitstreams}}
    return TestHost(place, spec, groups=groups, read=cloud.conf)
