/* Log lines on standard error: one event a line, as text for people or as JSON for machines.
 *
 * The form is chosen once by log_setup() before threads start; lines from several threads never
 * mix.  Prompt text and keys are never logged. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_setup(enum log_level min_level, bool json);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
