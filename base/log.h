/* Log lines on standard error: one event a line, as text for people or as JSON for machines.
 *
 * The form is chosen once by log_setup() before threads start; lines from several threads never
 * mix.  Keys are never logged, prompts only where log.prompts asks for it. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_setup(enum log_level min_level, bool json);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A line about one request; its id comes first, in JSON as a field of its own. */
void log_request(enum log_level level, const char *id, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
