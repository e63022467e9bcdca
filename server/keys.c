#include "server/keys.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 2 * 1024 * 1024 };

struct keys_entry {
    unsigned char key[KEYS_KEY_BYTES]; /* zeros behind it */
    struct keys_holder *holder;        /* borrowed */
};

void keys_init(struct keys *k) {
    *k = (struct keys){0};
    list_init(&k->holders);
    list_init(&k->everybody.link);
}

void keys_clear(struct keys *k) {
    free(k->entries);
    LIST_EACH_SAFE(it, &k->holders) {
        list_remove(it);
        free(LIST_ITEM(it, struct keys_holder, link));
    }
    keys_init(k);
}

static struct keys_holder *holder_of(struct keys *k, const char *name, size_t len) {
    LIST_EACH(it, &k->holders) {
        struct keys_holder *h = LIST_ITEM(it, struct keys_holder, link);
        if (strlen(h->name) == len && !memcmp(h->name, name, len)) return h;
    }
    struct keys_holder *h = err_alloc(1, sizeof *h);
    memcpy(h->name, name, len);
    list_append(&k->holders, &h->link);
    return h;
}

/* ---- the file ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static size_t word(const char *s, size_t len) {
    size_t n = 0;
    while (n < len && s[n] > ' ' && s[n] < 0x7F)
        n++;
    return n;
}

struct line {
    const char *name, *key;
    size_t name_len, key_len;
};

/* False: no key in it, or `e` says what is wrong. */
static bool parse_line(const char *s, size_t len, int number, struct line *out, struct err *e) {
    while (len && is_space(*s)) {
        s++;
        len--;
    }
    while (len && is_space(s[len - 1]))
        len--;
    if (!len || *s == '#') return false;
    size_t first = word(s, len), at = first;
    while (at < len && is_space(s[at]))
        at++;
    size_t second = word(s + at, len - at);
    *out = second ? (struct line){s, s + at, first, second} : (struct line){"key", s, 3, first};
    if (!first || at + second != len)
        return err_set(e, ERR_INPUT,
                       "line %d must be \"NAME KEY\" or \"KEY\", in printable ASCII without spaces "
                       "in either",
                       number);
    if (out->name_len > KEYS_NAME_BYTES)
        return err_set(e, ERR_INPUT, "line %d: a name has at most %d bytes", number,
                       KEYS_NAME_BYTES);
    if (out->key_len < KEYS_KEY_LEAST || out->key_len > KEYS_KEY_BYTES)
        return err_set(e, ERR_INPUT, "line %d: a key has %d to %d bytes", number, KEYS_KEY_LEAST,
                       KEYS_KEY_BYTES);
    return true;
}

static int count_holders(const struct keys_entry *entries, int n) {
    int different = 0;
    for (int i = 0; i < n; i++) {
        bool seen = false;
        for (int j = 0; j < i && !seen; j++)
            seen = entries[j].holder == entries[i].holder;
        different += !seen;
    }
    return different;
}

bool keys_parse(struct keys *k, const char *text, size_t len, struct err *e) {
    struct keys_entry *entries = NULL;
    int n = 0, number = 0;
    struct err why = {0};
    for (size_t at = 0; at < len && why.kind == ERR_NONE;) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t end = newline ? (size_t)(newline - text) : len;
        struct line line;
        bool has_key = parse_line(text + at, end - at, ++number, &line, &why);
        at = end + 1;
        if (!has_key) continue;
        if (n == KEYS_MAX) {
            err_set(&why, ERR_INPUT, "there are more than %d keys", KEYS_MAX);
            break;
        }
        entries = err_realloc(entries, (size_t)n + 1, sizeof *entries);
        entries[n] = (struct keys_entry){.holder = holder_of(k, line.name, line.name_len)};
        memcpy(entries[n++].key, line.key, line.key_len);
    }
    if (why.kind == ERR_NONE && !n) err_set(&why, ERR_INPUT, "there is no key in it");
    if (why.kind != ERR_NONE) {
        free(entries);
        if (e) *e = why;
        return false;
    }
    free(k->entries);
    k->entries = entries;
    k->n = n;
    k->n_holders = count_holders(entries, n);
    return true;
}

bool keys_load(struct keys *k, const char *path, struct err *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, errno, "server.api_key_file: can't read %s", path);
    char *text = err_alloc(1, FILE_BYTES + 1);
    size_t len = 0;
    ssize_t got;
    while ((got = read(fd, text + len, FILE_BYTES + 1 - len)) > 0)
        len += (size_t)got;
    int error = errno;
    struct stat st = {0};
    bool known = !fstat(fd, &st);
    close(fd);
    bool ok = false;
    if (got < 0)
        err_errno(e, error, "server.api_key_file: can't read %s", path);
    else if (len > FILE_BYTES)
        err_set(e, ERR_INPUT, "server.api_key_file: %s is larger than %d bytes", path, FILE_BYTES);
    else if (!(ok = keys_parse(k, text, len, e)))
        err_prefix(e, "server.api_key_file %s", path);
    if (ok && known && (st.st_mode & 0007))
        log_line(LOG_WARN, "server.api_key_file: everybody may read or change %s (chmod o= %s)",
                 path, path);
    explicit_bzero(text, FILE_BYTES + 1);
    free(text);
    return ok;
}

/* ---- asking ---- */

/* All bytes of all entries are looked at, whatever they are. */
struct keys_holder *keys_find(struct keys *k, const char *key) {
    if (!k->n) return &k->everybody;
    unsigned char given[KEYS_KEY_BYTES] = {0};
    size_t len = key ? strlen(key) : 0;
    bool fits = len >= KEYS_KEY_LEAST && len <= KEYS_KEY_BYTES;
    memcpy(given, key ? key : "", fits ? len : 0);
    struct keys_holder *found = NULL;
    for (int i = 0; i < k->n; i++) {
        volatile unsigned char differs = 0;
        for (size_t j = 0; j < KEYS_KEY_BYTES; j++)
            differs = (unsigned char)(differs | (given[j] ^ k->entries[i].key[j]));
        if (!differs) found = k->entries[i].holder;
    }
    return fits ? found : NULL;
}
