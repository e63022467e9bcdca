/* A bounded queue of pointers between threads.  A message moves ownership of what it points to.
 *
 * Many may push, one pops.  No lock is held across a call out of this file. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include "base/err.h"

struct queue;

struct queue *queue_new(size_t capacity);
/* Messages still inside are the caller's to pop first. */
void queue_free(struct queue *q);
/* False where the queue is full; the caller keeps the message. */
bool queue_push(struct queue *q, void *message) MUST_CHECK;
/* Waits for room.  Only for a pusher that the popper never waits for. */
void queue_push_wait(struct queue *q, void *message);
/* NULL where the queue is empty. */
void *queue_pop(struct queue *q);
/* Waits up to `seconds` (negative: for ever) for a message or a queue_kick(). */
void *queue_pop_wait(struct queue *q, double seconds);
/* Wakes one queue_pop_wait() with NULL, the present one or the next. */
void queue_kick(struct queue *q);

#endif
