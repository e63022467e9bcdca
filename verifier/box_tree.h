/* The file tree of a box with a mount namespace: read-only copies of what Python reads, a small
 * writable directory, no /proc, no /sys, no /dev.  In a process of its own mount namespace only. */
#ifndef VERIFIER_BOX_TREE_H
#define VERIFIER_BOX_TREE_H

#include "verifier/box.h"

/* Where the module's file is inside such a tree; it can't be opened through /proc there. */
#define BOX_TREE_MODULE "/firstpass_inside.so"

/* Makes the tree and makes it the root.  0 or an errno, with *detail a static name of the step. */
int box_tree_enter(const struct box_plan *, uid_t uid, const char **detail);

#endif
