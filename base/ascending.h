/* The order of doubles for qsort(). Any thread. */
#ifndef BASE_ASCENDING_H
#define BASE_ASCENDING_H

static inline int ascending_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

#endif
