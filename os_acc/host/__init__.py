# SPDX-License-Identifier: Apache-2.0

"""What Linux says about the host; read only, and without any privilege.

Every path is below one injected root (``/`` on a real host).
"""
