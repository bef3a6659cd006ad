# SPDX-License-Identifier: Apache-2.0

"""A directory for the path of ``nova.virt``; see ``os_acc/nova/loading.py``."""
