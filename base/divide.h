/* Integer division that rounds up. Any thread. */
#ifndef BASE_DIVIDE_H
#define BASE_DIVIDE_H

/* The parts of size b that hold a; a >= 0, b > 0, their sum an int. */
static inline int divide_up(int a, int b) { return (a + b - 1) / b; }

#endif
