# SPDX-License-Identifier: Apache-2.0

"""The module ``nova.virt.os_acc``; see ``os_acc/nova/loading.py``."""

from os_acc.nova.driver import LibvirtDriver

__all__ = ["LibvirtDriver"]
