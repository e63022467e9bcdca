#include "base/log.h"

#include "base/buf.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* Static globals of this file: the form of the log, set before any thread starts. */
static enum log_level log_min_level = LOG_INFO;
static bool log_json;

void log_setup(enum log_level min_level, bool json) {
    log_min_level = min_level;
    log_json = json;
}

static void put_json_string(struct buf *b, const char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c < 0x20)
            buf_printf(b, "\\u%04x", c);
        else
            buf_append(b, s, 1);
    }
}

void log_line(enum log_level level, const char *fmt, ...) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level < log_min_level) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    char when[40];
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);

    struct buf line;
    buf_init(&line, 16384);
    if (log_json) {
        buf_printf(&line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"event\":\"", when,
                   now.tv_nsec / 1000000, names[level]);
        put_json_string(&line, text);
        buf_puts(&line, "\"}\n");
    } else {
        buf_printf(&line, "%s.%03ldZ %-5s %s\n", when, now.tv_nsec / 1000000, names[level], text);
    }
    /* One write a line keeps lines of several threads whole. */
    ssize_t written = write(STDERR_FILENO, buf_text(&line), line.len);
    (void)written;
    buf_clear(&line);
}
