# SPDX-License-Identifier: Apache-2.0

"""Let eventlet change Python as in nova-compute: ``pytest -p tests.under_eventlet``.

Threads are greenlets then. pytest imports the plugin before any test. The mark
``native_threads`` is that of tests of signals to a thread, and of forks:
nova-compute does not fork under eventlet.
"""

from __future__ import annotations

import os

import eventlet
from eventlet import hubs

eventlet.monkey_patch()
# A child of a test shares the files for which the hub of its parent waits.
os.register_at_fork(after_in_child=hubs.use_hub)
