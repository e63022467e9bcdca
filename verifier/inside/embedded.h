/* The files of this directory as bytes of the program, so that the one binary needs nothing beside
 * it. */
#ifndef INSIDE_EMBEDDED_H
#define INSIDE_EMBEDDED_H

#include <stddef.h>

struct embedded_file {
    const char *name; /* "boot.py"; the module is "module.so" */
    const unsigned char *data;
    size_t len;
};
extern const struct embedded_file embedded_files[];
extern const int embedded_n_files;
/* Not given to any box: verifier/attacks.txt. */
extern const struct embedded_file embedded_attacks_files[];
extern const int embedded_attacks_n_files;

#endif
