# SPDX-License-Identifier: Apache-2.0

"""The unprivileged side of the privileged helper."""
