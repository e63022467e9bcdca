#include "engine/hf_json.h"

#include "base/buf.h"
#include "base/map.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool parse(struct hf_json *j, size_t max_bytes, struct err *e) {
    struct map m;
    if (!map_open(&m, j->path, "file", e)) return false;
    bool ok = false;
    json_error_t why;
    if (m.len > max_bytes)
        err_set(e, ERR_INPUT, "%s has %llu bytes; up to %zu are read", j->path,
                (unsigned long long)m.len, max_bytes);
    else if (!(j->root = json_loadb(m.bytes, (size_t)m.len, JSON_REJECT_DUPLICATES, &why)))
        err_set(e, ERR_INPUT, "%s:%d: not the JSON it should be: %s", j->path, why.line, why.text);
    else if (!json_is_object(j->root))
        err_set(e, ERR_INPUT, "%s: not the JSON object it should be", j->path);
    else
        ok = true;
    map_close(&m);
    return ok;
}

bool hf_json_open(struct hf_json *j, const char *dir, const char *name, size_t max_bytes,
                  bool required, struct err *e) {
    struct buf path;
    buf_init(&path, 1 << 16);
    buf_printf(&path, "%s/%s", dir, name);
    *j = (struct hf_json){.path = buf_take(&path, NULL)};
    if (!required && access(j->path, F_OK) && errno == ENOENT) return true;
    return parse(j, max_bytes, e);
}

void hf_json_close(struct hf_json *j) {
    json_decref(j->root);
    free(j->path);
    *j = (struct hf_json){0};
}

const json_t *hf_json_get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

bool hf_json_int(const struct hf_json *j, const json_t *object, const char *key, int64_t least,
                 int64_t most, int64_t fallback, int64_t *out, struct err *e) {
    const json_t *value = hf_json_get(object, key);
    *out = fallback;
    if (!value && fallback >= least) return true;
    if (!value) return err_set(e, ERR_INPUT, "%s: %s is missing", j->path, key);
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most)
        return err_set(e, ERR_INPUT, "%s: %s must be an integer from %lld to %lld", j->path, key,
                       (long long)least, (long long)most);
    *out = json_integer_value(value);
    return true;
}

bool hf_json_number(const struct hf_json *j, const json_t *object, const char *key, double fallback,
                    double *out, struct err *e) {
    const json_t *value = hf_json_get(object, key);
    *out = fallback;
    if (!value && fallback > 0) return true;
    if (!value) return err_set(e, ERR_INPUT, "%s: %s is missing", j->path, key);
    double number = json_number_value(value);
    if (!json_is_number(value) || !isfinite((float)number) || !(number > 0))
        return err_set(e, ERR_INPUT, "%s: %s must be a number above 0", j->path, key);
    *out = number;
    return true;
}

bool hf_json_bool(const struct hf_json *j, const json_t *object, const char *key, bool fallback,
                  bool *out, struct err *e) {
    const json_t *value = hf_json_get(object, key);
    *out = value ? json_is_true(value) : fallback;
    return !value || json_is_boolean(value) ||
           err_set(e, ERR_INPUT, "%s: %s must be true or false", j->path, key);
}

bool hf_json_text(const struct hf_json *j, const json_t *object, const char *key, const char **out,
                  struct err *e) {
    const json_t *value = hf_json_get(object, key);
    *out = json_string_value(value);
    return !value || json_is_string(value) ||
           err_set(e, ERR_INPUT, "%s: %s must be a string", j->path, key);
}
