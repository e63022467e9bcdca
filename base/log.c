#include "base/log.h"

#include "base/buf.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Static globals of this file: the form of the log, set before any thread starts. */
static enum log_level log_min_level = LOG_INFO;
static bool log_json;

void log_setup(enum log_level min_level, bool json) {
    log_min_level = min_level;
    log_json = json;
}

/* Text of others must neither begin a line of its own nor break the JSON: control characters are
 * escaped, what isn't UTF-8 (a message may be cut within a character) is replaced. */
static void put_text(struct buf *b, const char *s, bool json) {
    size_t len = strlen(s);
    while (len) {
        uint32_t c;
        int n = utf8_decode(s, len, &c);
        if (n <= 0) {
            buf_puts(b, "\xEF\xBF\xBD");
            n = 1;
        } else if (c < 0x20 || c == 0x7F) {
            buf_printf(b, "\\u%04x", c);
        } else {
            if (json && (c == '"' || c == '\\')) buf_puts(b, "\\");
            buf_append(b, s, (size_t)n);
        }
        s += n;
        len -= (size_t)n;
    }
}

static void __attribute__((format(printf, 3, 0)))
write_line(enum log_level level, const char *id, const char *fmt, va_list args) {
    if (level < log_min_level) return;
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    char when[40];
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);

    struct buf line;
    buf_init(&line, 16384);
    if (log_json) {
        buf_puts(&line, "{");
        if (id) {
            buf_puts(&line, "\"request\":\"");
            put_text(&line, id, true);
            buf_puts(&line, "\",");
        }
        buf_printf(&line, "\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"event\":\"", when,
                   now.tv_nsec / 1000000, names[level]);
        put_text(&line, text, true);
        buf_puts(&line, "\"}\n");
    } else {
        buf_printf(&line, "%s.%03ldZ %-5s ", when, now.tv_nsec / 1000000, names[level]);
        if (id) {
            put_text(&line, id, false);
            buf_puts(&line, " ");
        }
        put_text(&line, text, false);
        buf_puts(&line, "\n");
    }
    /* One write a line keeps lines of several threads whole. */
    ssize_t written = write(STDERR_FILENO, buf_text(&line), line.len);
    (void)written;
    buf_clear(&line);
}

void log_line(enum log_level level, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    write_line(level, NULL, fmt, args);
    va_end(args);
}

void log_request(enum log_level level, const char *id, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    write_line(level, id, fmt, args);
    va_end(args);
}
