# SPDX-License-Identifier: Apache-2.0

"""The contract with vendors' plugins, their loader, and the plugins of os_acc."""
