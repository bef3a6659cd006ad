# SPDX-License-Identifier: Apache-2.0

"""The main job on a simulated host, for ``os-acc demo``.

Only the host is simulated. What is shown is what the library returns, what
its journal holds and what the host's tree says.
"""
