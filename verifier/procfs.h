/* Files in which the kernel tells and takes one thing: /proc, cgroups.  Any thread. */
#ifndef VERIFIER_PROCFS_H
#define VERIFIER_PROCFS_H

#include <stdbool.h>
#include <stdint.h>

/* Up to `max` unsigned decimal numbers of the file, from `key` on where it isn't NULL (as "Pid:");
 * how many there are, 0 where the file can't be read. */
int procfs_numbers(const char *path, const char *key, uint64_t *out, int max);
/* Writes the text, in one go, to a file that is there; false with errno. */
bool procfs_write(const char *path, const char *text);

#endif
