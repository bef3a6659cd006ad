# SPDX-License-Identifier: Apache-2.0

"""Plugins of os_acc for Acme's F2 and M1 cards."""
