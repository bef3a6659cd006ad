# SPDX-License-Identifier: Apache-2.0

"""Options that both the service and the privileged helper read.

The helper finds the cached bitstreams and the tools that load them by these, and
reads no other option of the service: it loads no plugins and opens no store. The
module is outside privsep, so that reading options loads no privileged code.
"""

from __future__ import annotations

from oslo_config import cfg

#: The group of :data:`STATE_PATH`.
GROUP = "os_acc"
#: The group of :data:`XRT_TOOLS`; the plugin's entry point is ``xrt``.
XRT_GROUP = "os_acc_xrt"

STATE_PATH = cfg.StrOpt(
    "state_path",
    default="/var/lib/os_acc",
    help="Directory of the leases, the journal, the locks and the cached "
    "bitstreams. It must be on a local file system that survives a reboot, "
    "and belong to the user that runs nova-compute.",
)

XRT_TOOLS = cfg.StrOpt(
    "tools",
    default="/opt/xilinx/xrt/bin",
    help="Directory of the XRT tools xbmgmt and xbutil. The tools run as root: "
    "the directory and the tools must belong to root, and no other user may "
    "have write permission.",
)
