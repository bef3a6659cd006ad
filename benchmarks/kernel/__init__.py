# SPDX-License-Identifier: Apache-2.0

"""Benchmarks on a real kernel, in the virtual machine of the kernel lane."""
