/* What parsing a JSON text would take, told before a parser sees it.
 *
 * jansson parses recursively and takes some 200 bytes for each container: who is sent JSON bounds
 * both by this.  Text that isn't JSON is counted in some way or other, and refused by the parser.
 * Pure. */
#ifndef BASE_JSON_SHAPE_H
#define BASE_JSON_SHAPE_H

#include <stddef.h>

struct json_shape {
    size_t depth, containers,
        strings; /* levels of nesting; arrays and objects; strings, keys too */
};

/* Adds a text: `depth` becomes that of the deepest, the others are sums.  Zero it first. */
void json_shape_add(struct json_shape *, const char *text, size_t len);

#endif
