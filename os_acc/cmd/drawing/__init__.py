# SPDX-License-Identifier: Apache-2.0

"""What ``os-acc topology`` draws: a tree of lines, as text and as SVG."""
