#include "base/json_shape.h"

#include <stdbool.h>

void json_shape_add(struct json_shape *shape, const char *text, size_t len) {
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') i++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
            shape->strings++;
        } else if (c == '[' || c == '{') {
            shape->containers++;
            if (++depth > shape->depth) shape->depth = depth;
        } else if ((c == ']' || c == '}') && depth) {
            depth--;
        }
    }
}
