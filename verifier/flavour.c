#include "verifier/flavour.h"

#include "verifier/payload.h"

#include <string.h>
#include <unistd.h>

static const char *const names[FLAVOURS] = {
    [FLAVOUR_NUMPY] = "numpy",
    [FLAVOUR_SCIPY] = "scipy",
    [FLAVOUR_PANDAS] = "pandas",
};
static const double LOAD_S = 30;

static bool is_part_of_a_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool has_word(const char *line, size_t len, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= len; i++)
        if (!memcmp(line + i, word, n) && (i == 0 || !is_part_of_a_name(line[i - 1])) &&
            (i + n == len || !is_part_of_a_name(line[i + n])))
            return true;
    return false;
}

static bool begins_with(const char *line, size_t len, const char *word) {
    size_t n = strlen(word);
    return len > n && !memcmp(line, word, n) && (line[n] == ' ' || line[n] == '\t');
}

enum flavour flavour_of(const char *code, size_t len) {
    enum flavour found = FLAVOUR_STANDARD;
    for (const char *at = code, *end = code + len; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *line = at;
        if (!stop) stop = end;
        while (line < stop && (*line == ' ' || *line == '\t'))
            line++;
        size_t n = (size_t)(stop - line);
        if (begins_with(line, n, "import") || begins_with(line, n, "from"))
            for (enum flavour f = FLAVOUR_PANDAS; f > found; f--)
                if (has_word(line, n, names[f])) found = f;
        at = stop + 1;
    }
    return found;
}

static void on_changed(void *arg, enum holder_state state, const char *text) {
    (void)text;
    struct flavour_place *place = arg;
    if (state == HOLDER_READY) {
        place->loaded = true;
        return;
    }
    place->useless = !place->loaded; /* one that is lost later is made again when asked for */
    holder_close(place->holder);
    place->holder = NULL;
}

static void start(struct flavour_place *place, struct watch_set *watches, struct forker *zygote,
                  const char *name, uint64_t memory) {
    int fd = payload_memfd("flavour", name, strlen(name), NULL);
    if (fd < 0) return;
    struct holder_input input = {
        .kind = WIRE_FLAVOUR,
        .fd = fd,
        .address_space = memory,
        .seconds = LOAD_S,
    };
    place->holder = holder_open(watches, zygote, &input, on_changed, place);
    close(fd);
}

struct forker *flavour_forker(struct flavour_set *set, struct watch_set *watches,
                              struct forker *zygote, enum flavour f, uint64_t memory) {
    struct flavour_place *place = &set->places[f];
    if (f == FLAVOUR_STANDARD || place->useless) return NULL;
    if (!place->holder) start(place, watches, zygote, names[f], memory);
    if (!place->holder || holder_state(place->holder) != HOLDER_READY) return NULL;
    struct forker *forker = holder_forker(place->holder);
    return process_forker_is_open(forker) ? forker : NULL;
}

void flavour_clear(struct flavour_set *set) {
    for (int f = 0; f < FLAVOURS; f++)
        holder_close(set->places[f].holder);
    *set = (struct flavour_set){0};
}
