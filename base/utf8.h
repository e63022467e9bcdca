/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF.  Pure. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes of the sequence at s (1…4) and its code point in *c; 0 where the bytes are not
 * UTF-8; -1 where they are the start of a sequence that `len` cuts off. */
int utf8_decode(const char *s, size_t len, uint32_t *c);
/* Writes 1…4 bytes to out, returns how many; c must be a scalar value. */
int utf8_encode(uint32_t c, char out[4]);
bool utf8_valid(const char *s, size_t len);
/* Bytes at the end of s that start a sequence which is not complete yet: 0…3.  These are to be
 * held back when text is sent in pieces. */
size_t utf8_incomplete_tail(const char *s, size_t len);

#endif
