/* Monotonic time in seconds since some fixed moment.  Any thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_seconds(void);

#endif
