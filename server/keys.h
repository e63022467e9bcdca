/* API keys out of a file, and what each key's holder has in work.
 *
 * One key a line, "NAME KEY" or only "KEY"; blank lines and those that begin with '#' don't count.
 * A name may have several keys, so that a new one can be handed out before the old one goes.  Keys
 * are compared in a time that says nothing about how much of one was right.
 *
 * Holders live as long as this struct, so that requests of a key that a reload took away end in
 * peace.  LOOP thread; embedded: init / clear. */
#ifndef SERVER_KEYS_H
#define SERVER_KEYS_H

#include "base/err.h"
#include "base/list.h"

#include <stdint.h>

enum { KEYS_MAX = 4096, KEYS_NAME_BYTES = 64, KEYS_KEY_BYTES = 256, KEYS_KEY_LEAST = 8 };

struct keys_holder {
    struct list link;
    char name[KEYS_NAME_BYTES + 1]; /* "" without a file: everybody */
    int n_races;                    /* admitted and not ended */
    int n_live;                     /* of these, started */
    int64_t n_candidates;           /* of those admitted */
};

struct keys {
    struct list holders;
    struct keys_holder everybody;
    struct keys_entry *entries; /* owned */
    int n;                      /* 0: no key is asked for */
    int n_holders;              /* with a key */
};

void keys_init(struct keys *);
void keys_clear(struct keys *);
/* Replaces all keys by those of the file; on failure the old ones stay. */
bool keys_load(struct keys *, const char *path, struct err *e) MUST_CHECK;
/* The same from memory. */
bool keys_parse(struct keys *, const char *text, size_t len, struct err *e) MUST_CHECK;
/* Who has this key; NULL: nobody.  `key` may be NULL. */
struct keys_holder *keys_find(struct keys *, const char *key);

#endif
