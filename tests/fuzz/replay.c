/* A plain main for a fuzz target: gives it each file named, and each file in the folders named.
 * Builds with any compiler, so that every run of the tests replays the corpus.  A sanitizer or the
 * target's own BUG_ON ends a bad one. */
#include "base/buf.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 64 << 20 };

static bool replay_file(const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in) {
        perror(path);
        return false;
    }
    struct buf input;
    char chunk[4096];
    size_t n;
    buf_init(&input, INPUT_MAX);
    while ((n = fread(chunk, 1, sizeof chunk, in)) > 0)
        buf_append(&input, chunk, n);
    bool whole = !ferror(in) && !input.overflowed;
    fclose(in);
    if (whole) {
        /* An exact copy, so that a sanitizer sees the first byte read behind it. */
        uint8_t *exact = malloc(input.len ? input.len : 1);
        if (!exact) abort();
        memcpy(exact, buf_text(&input), input.len);
        LLVMFuzzerTestOneInput(exact, input.len);
        free(exact);
    } else {
        fprintf(stderr, "%s can't be read\n", path);
    }
    buf_clear(&input);
    return whole;
}

static bool replay(const char *path, int *n_files) {
    struct stat st;
    if (stat(path, &st)) {
        perror(path);
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        (*n_files)++;
        return replay_file(path);
    }
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return false;
    }
    bool done = true;
    const struct dirent *entry;
    while ((entry = readdir(folder))) {
        char name[4096];
        if (entry->d_name[0] == '.') continue;
        int len = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (len < 0 || (size_t)len >= sizeof name || stat(name, &st) || !S_ISREG(st.st_mode))
            continue;
        (*n_files)++;
        done = replay_file(name) && done;
    }
    closedir(folder);
    return done;
}

int main(int argc, char **argv) {
    bool done = true;
    int n_files = 0;
    for (int i = 1; i < argc; i++)
        done = replay(argv[i], &n_files) && done;
    printf("%d inputs replayed\n", n_files);
    if (!n_files) fprintf(stderr, "no input: name files or folders of a corpus\n");
    return done && n_files ? EXIT_SUCCESS : EXIT_FAILURE;
}
