# SPDX-License-Identifier: Apache-2.0

"""The main job on a simulated host, for ``os-acc demo``.

Only the host is simulated. The demo shows the results of the library, its
journal and the host's tree.
"""
