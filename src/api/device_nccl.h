/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_API_DEVICE_NCCL_H
#define GS_API_DEVICE_NCCL_H

/* The current GPU, for groups that send their messages over NCCL. */

#include "collective/group_nccl.h"

/* Fills in ops, device, ordinal and own of the settings: where there is no GPU, own tells why. */
void gs_nccl_device_open(gs_nccl_settings *settings);
/* This hold of it; groups have their own. */
void gs_nccl_device_release(const gs_nccl_settings *settings);

#endif
