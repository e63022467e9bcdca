#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct queue {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t filled, drained;
    size_t capacity, first, count;
    bool kicked;
    void *items[];
};

struct queue *queue_new(size_t capacity) {
    struct queue *q = err_alloc(1, sizeof *q + capacity * sizeof(void *));
    q->capacity = capacity;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->filled, &attr);
    pthread_cond_init(&q->drained, &attr);
    pthread_condattr_destroy(&attr);
    return q;
}

void queue_free(struct queue *q) {
    if (!q) return;
    pthread_cond_destroy(&q->filled);
    pthread_cond_destroy(&q->drained);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void put(struct queue *q, void *message) {
    q->items[(q->first + q->count) % q->capacity] = message;
    q->count++;
    pthread_cond_signal(&q->filled);
}

static void *take(struct queue *q) {
    if (!q->count) return NULL;
    void *message = q->items[q->first];
    q->first = (q->first + 1) % q->capacity;
    q->count--;
    pthread_cond_signal(&q->drained);
    return message;
}

bool queue_push(struct queue *q, void *message) {
    BUG_ON(!message);
    pthread_mutex_lock(&q->lock);
    bool room = q->count < q->capacity;
    if (room) put(q, message);
    pthread_mutex_unlock(&q->lock);
    return room;
}

void queue_push_wait(struct queue *q, void *message) {
    BUG_ON(!message);
    pthread_mutex_lock(&q->lock);
    while (q->count == q->capacity)
        pthread_cond_wait(&q->drained, &q->lock);
    put(q, message);
    pthread_mutex_unlock(&q->lock);
}

void *queue_pop(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    void *message = take(q);
    pthread_mutex_unlock(&q->lock);
    return message;
}

void *queue_pop_wait(struct queue *q, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (seconds >= 0) {
        long ns = until.tv_nsec + (long)((seconds - (double)(long)seconds) * 1e9);
        until.tv_sec += (long)seconds + ns / 1000000000L;
        until.tv_nsec = ns % 1000000000L;
    }
    pthread_mutex_lock(&q->lock);
    while (!q->count && !q->kicked) {
        if (seconds < 0)
            pthread_cond_wait(&q->filled, &q->lock);
        else if (pthread_cond_timedwait(&q->filled, &q->lock, &until) == ETIMEDOUT)
            break;
    }
    q->kicked = false;
    void *message = take(q);
    pthread_mutex_unlock(&q->lock);
    return message;
}

void queue_kick(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    q->kicked = true;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}
