#include "base/utf8.h"

int utf8_decode(const char *s, size_t len, uint32_t *c) {
    if (!len) return -1;
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *c = p[0];
        return 1;
    }
    int n;
    /* The second byte's range is what excludes overlong forms, surrogates and > U+10FFFF. */
    unsigned char low = 0x80, high = 0xBF;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        n = 2;
        *c = p[0] & 0x1Fu;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        n = 3;
        *c = p[0] & 0x0Fu;
        if (p[0] == 0xE0) low = 0xA0;
        if (p[0] == 0xED) high = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        n = 4;
        *c = p[0] & 0x07u;
        if (p[0] == 0xF0) low = 0x90;
        if (p[0] == 0xF4) high = 0x8F;
    } else {
        return 0;
    }
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= len) return -1;
        if (p[i] < low || p[i] > high) return 0;
        *c = *c << 6 | (p[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return n;
}

int utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)(lead[n] | c);
    return n;
}

bool utf8_valid(const char *s, size_t len) {
    uint32_t c;
    for (size_t i = 0; i < len;) {
        int n = utf8_decode(s + i, len - i, &c);
        if (n <= 0) return false;
        i += (size_t)n;
    }
    return true;
}

size_t utf8_incomplete_tail(const char *s, size_t len) {
    uint32_t c;
    size_t most = len < 3 ? len : 3;
    for (size_t n = most; n > 0; n--)
        if (utf8_decode(s + len - n, n, &c) == -1) return n;
    return 0;
}
