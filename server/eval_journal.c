#include "server/eval_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_PIECE = 1 << 20 };

static bool make_folder(const char *dir, struct err *e) {
    char *path = err_strdup(dir);
    bool ok = *path || err_set(e, ERR_INPUT, "--out must name a folder");
    for (char *at = path + 1; ok && *path; at++) {
        if (*at && *at != '/') continue;
        char was = *at;
        *at = 0;
        if (mkdir(path, 0777) && errno != EEXIST) {
            ok = err_errno(e, errno, "%s can't be made", path);
            e->kind = ERR_INPUT;
        }
        *at = was;
        if (!was) break;
    }
    free(path);
    return ok;
}

/* ---- what an earlier run left ---- */

/* One word for the first option that differs; NULL: they are equal. */
static const char *differing(json_t *now, json_t *then) {
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value) {
        if (!json_equal(value, json_object_get(then, key))) return key;
    }
    json_object_foreach(then, key, value) {
        if (!json_object_get(now, key)) return key;
    }
    return NULL;
}

static char *shown(json_t *v) {
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    return text ? text : err_strdup("nothing");
}

static bool check_options(const struct eval_journal *j, json_t *first, json_t *options,
                          struct err *e) {
    json_t *then = json_object_get(first, "options");
    if (json_integer_value(json_object_get(first, "eval")) != 1 || !json_is_object(then))
        return err_set(e, ERR_INPUT, "%s is no journal of `firstpass eval`", j->path);
    const char *key = differing(options, then);
    if (!key) return true;
    char *was = shown(json_object_get(then, key)), *is = shown(json_object_get(options, key));
    err_set(e, ERR_INPUT,
            "%s was begun with another \"%s\": %.120s, now %.120s; give the same options, or "
            "another --out",
            j->path, key, was, is);
    free(was);
    free(is);
    return false;
}

struct reading {
    const struct eval_journal *journal;
    json_t *options; /* borrowed; NULL: they were checked */
    int sessions;
    bool (*line)(void *arg, json_t *, struct err *);
    void *arg;
    int number;
    struct err *e;
};

static bool take_line(struct reading *r, const char *text, size_t len) {
    json_error_t why;
    r->number++;
    json_t *object = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    if (!json_is_object(object)) {
        json_decref(object);
        return err_set(r->e, ERR_INPUT,
                       "%s, line %d, is damaged: take the line out, or use another --out",
                       r->journal->path, r->number);
    }
    bool ok;
    if (r->number == 1) {
        ok = !r->options || check_options(r->journal, object, r->options, r->e);
    } else {
        if (json_object_get(object, "session")) r->sessions++;
        ok = r->line(r->arg, object, r->e);
        if (!ok) err_prefix(r->e, "%s, line %d", r->journal->path, r->number);
    }
    json_decref(object);
    return ok;
}

/* All whole lines; *whole: bytes of them. */
static bool read_lines(struct reading *r, off_t *whole) {
    const struct eval_journal *j = r->journal;
    struct buf b;
    buf_init(&b, (size_t)EVAL_JOURNAL_LINE_BYTES * 2);
    char *piece = err_alloc(READ_PIECE, 1);
    ssize_t got = 0;
    bool ok = true;
    *whole = 0;
    while (ok && (got = pread(j->fd, piece, READ_PIECE, *whole + (off_t)b.len)) > 0) {
        if (!buf_append(&b, piece, (size_t)got))
            ok = err_set(r->e, ERR_INPUT, "%s has a line that is too long", j->path);
        size_t at = 0;
        const char *end;
        while (ok && b.len && (end = memchr(b.data + at, '\n', b.len - at))) {
            size_t n = (size_t)(end - (b.data + at));
            ok = take_line(r, b.data + at, n);
            at += n + 1;
        }
        buf_consume(&b, at);
        *whole += (off_t)at;
    }
    if (ok && got < 0) ok = err_errno(r->e, errno, "%s can't be read", j->path);
    free(piece);
    buf_clear(&b);
    return ok;
}

/* ---- the front ---- */

static bool begin(struct eval_journal *j, json_t *options, struct err *e) {
    char *text = json_dumps(options, JSON_COMPACT);
    BUG_ON(!text);
    struct buf line;
    buf_init(&line, EVAL_JOURNAL_LINE_BYTES);
    buf_printf(&line, "{\"eval\": 1, \"options\": %s}", text);
    bool ok = eval_journal_append(j, &line, e);
    buf_clear(&line);
    free(text);
    return ok;
}

bool eval_journal_open(struct eval_journal *j, const char *dir, json_t *options,
                       bool (*line)(void *arg, json_t *, struct err *), void *arg, struct err *e) {
    static const char name[] = "/candidates.jsonl";
    *j = (struct eval_journal){.fd = -1};
    if (!make_folder(dir, e)) return false;
    size_t size = strlen(dir) + sizeof name;
    j->path = err_alloc(size, 1);
    snprintf(j->path, size, "%s%s", dir, name);
    j->fd = open(j->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (j->fd < 0) {
        err_errno(e, errno, "%s", j->path);
        eval_journal_close(j);
        e->kind = ERR_INPUT;
        return false;
    }
    struct reading r = {.journal = j, .options = options, .line = line, .arg = arg, .e = e};
    off_t whole;
    bool ok = !flock(j->fd, LOCK_EX | LOCK_NB) ||
              err_set(e, ERR_INPUT, "another `firstpass eval` works in %s", dir);
    ok = ok && read_lines(&r, &whole);
    /* What follows the last newline was torn by a kill. */
    if (ok && ftruncate(j->fd, whole))
        ok = err_errno(e, errno, "%s: its torn last line can't be cut off", j->path);
    ok = ok && (r.number || begin(j, options, e));
    j->sessions = r.sessions;
    if (!ok) eval_journal_close(j);
    return ok;
}

bool eval_journal_again(const struct eval_journal *j,
                        bool (*line)(void *arg, json_t *, struct err *), void *arg, struct err *e) {
    struct reading r = {.journal = j, .line = line, .arg = arg, .e = e};
    off_t whole;
    return read_lines(&r, &whole);
}

bool eval_journal_append(struct eval_journal *j, struct buf *line, struct err *e) {
    BUG_ON(memchr(buf_text(line), '\n', line->len));
    bool ok = buf_puts(line, "\n");
    if (!ok) err_set(e, ERR_SYSTEM, "a line of %s is too long", j->path);
    size_t at = 0;
    while (ok && at < line->len) {
        ssize_t put = write(j->fd, line->data + at, line->len - at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) ok = err_errno(e, put ? errno : ENOSPC, "%s can't be written", j->path);
        if (put > 0) at += (size_t)put;
    }
    buf_reset(line);
    return ok;
}

void eval_journal_close(struct eval_journal *j) {
    if (j->fd >= 0) close(j->fd);
    free(j->path);
    *j = (struct eval_journal){.fd = -1};
}
