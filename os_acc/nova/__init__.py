# SPDX-License-Identifier: Apache-2.0

"""What Nova loads of os_acc; the only room that imports Nova."""
