# SPDX-License-Identifier: Apache-2.0

"""Plugin of os_acc for Acme's M1 cards."""
