# SPDX-License-Identifier: Apache-2.0

"""The accelerators that the host offers."""
