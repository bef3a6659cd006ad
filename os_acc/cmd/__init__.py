# SPDX-License-Identifier: Apache-2.0

"""The ``os-acc`` command, for operators."""
