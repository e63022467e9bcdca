/* A whole file, mapped for reading.
 *
 * Embedded: open / close.  Any thread. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/err.h"

#include <stdint.h>

struct map {
    const void *bytes; /* owned mapping; NULL: not open */
    uint64_t len;      /* at least 1 */
};

/* `what` names the kind of file in messages ("model file").  Fails, with ERR_INPUT, where the path
 * is no file that can be read or an empty one. */
bool map_open(struct map *, const char *path, const char *what, struct err *e) MUST_CHECK;
void map_close(struct map *);
/* Gives back the pages that lie wholly inside these bytes of the mapping: they come from the file
 * again where they are read once more. */
void map_forget(const void *bytes, uint64_t len);

#endif
