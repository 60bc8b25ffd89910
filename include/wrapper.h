/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Input of bindgen (build.rs): the interface that Slurm's plugins see. */
#include <slurm/spank.h>
