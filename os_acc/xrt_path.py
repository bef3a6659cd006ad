# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Where XRT's tools are.

The service reads it with the plugin's options; the privileged helper, which
loads no plugins, finds the tools by it.
"""

from __future__ import annotations

from oslo_config import cfg

#: Of the plugin with the entry point ``xrt``.
GROUP = "os_acc_xrt"

OPTION = cfg.StrOpt(
    "tools",
    default="/opt/xilinx/xrt/bin",
    help="The directory of XRT's tools, xbmgmt and xbutil. They are run as "
    "root: the directory and the tools have to belong to root, and nobody "
    "else may be allowed to write to them.",
)
