# SPDX-License-Identifier: Apache-2.0

"""Drawings of ``os-acc topology``: a tree of lines, as text and as SVG."""
